//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A child is a server in a process of its own, perhaps with processes below it. It dies with its parent.
type child struct {
	name string
	addr string
	cmd  *exec.Cmd
	log  string        // the file that both of its outputs go to
	done chan struct{} // closed when it has ended
}

// A place is the processors that a child is held to, as taskset understands it; empty = all.
type place string

// command is a program in its place, which gets nothing of the environment that would change what it does.
func (p place) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	if p != "" {
		program, args = "taskset", append([]string{"-c", string(p), program}, args...)
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // killed, nginx would leave its worker behind
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); name != "GOGC" && name != "GOMEMLIMIT" && name != "GODEBUG" && name != "GOMAXPROCS" {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, "GOMAXPROCS=1")
	return cmd
}

// start runs a server and waits until it takes connections.
func start(ctx context.Context, p place, dir, name, addr, program string, args ...string) (*child, error) {
	c := &child{name: name, addr: addr, cmd: p.command(ctx, program, args...), log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	out, err := os.Create(c.log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	c.cmd.Dir = dir
	c.cmd.Env = append(c.cmd.Env, "HOME="+dir, "XDG_CONFIG_HOME="+dir, "XDG_DATA_HOME="+dir) // Caddy keeps things there
	c.cmd.Stdout, c.cmd.Stderr = out, out
	if err := c.cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go func() {
		_ = c.cmd.Wait()
		close(c.done)
	}()
	for end := time.Now().Add(10 * time.Second); ; {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			conn.Close()
			return c, nil
		}
		select {
		case <-c.done:
			return nil, fmt.Errorf("%s did not start: %s", name, c.said())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(end) {
			c.stop()
			return nil, fmt.Errorf("%s does not listen at %s: %s", name, addr, c.said())
		}
	}
}

// said is the end of what the child has said.
func (c *child) said() string {
	b, _ := os.ReadFile(c.log)
	return string(bytes.TrimSpace(b[max(0, len(b)-1000):]))
}

// stop ends a child, by force if it must.
func (c *child) stop() {
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.done:
	case <-time.After(2 * time.Second):
		for _, pid := range tree(c.cmd.Process.Pid) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		<-c.done
	}
}

// cpu is the processor time that the child's living processes have used.
func (c *child) cpu() (sum time.Duration) {
	for _, pid := range tree(c.cmd.Process.Pid) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err == nil {
			sum += cpuOf(string(stat))
		}
	}
	return sum
}

// settle waits until the child has nothing to do any more, a second at most.
func (c *child) settle() {
	const tick = 50 * time.Millisecond // some of the 10 ms that the system counts in
	for before, end := c.cpu(), time.Now().Add(time.Second); time.Now().Before(end); {
		time.Sleep(tick)
		now := c.cpu()
		if now == before {
			return
		}
		before = now
	}
}

// cpuOf reads user and system time off the text of /proc/PID/stat.
func cpuOf(stat string) time.Duration {
	f := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:]) // the name before it may hold anything
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(f[11], 10, 64)
	system, _ := strconv.ParseInt(f[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond // USER_HZ is 100 wherever Go runs
}

// memory is what the child's processes have in memory, bytes. What they share counts for each.
func (c *child) memory() (sum int64) {
	for _, pid := range tree(c.cmd.Process.Pid) {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err == nil {
			sum += memoryOf(string(status))
		}
	}
	return sum
}

// memoryOf reads VmRSS off the text of /proc/PID/status.
func memoryOf(status string) int64 {
	_, after, _ := strings.Cut(status, "\nVmRSS:")
	line, _, _ := strings.Cut(after, "\n")
	kib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(line), " kB"), 10, 64)
	return kib << 10
}

// tree is a process and all below it.
func tree(pid int) []int {
	all := []int{pid}
	for i := 0; i < len(all); i++ {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", all[i], all[i]))
		if err != nil {
			continue
		}
		for _, f := range strings.Fields(string(children)) {
			if n, err := strconv.Atoi(f); err == nil {
				all = append(all, n)
			}
		}
	}
	return all
}

// freeAddr is an address on the loopback interface that nobody listens at.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
