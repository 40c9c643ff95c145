package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// A child is a server in a process of its own. It says where it listens on its standard output and ends when its standard
// input does, so it outlives neither its parent nor, by --life, its purpose.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	addr  string
}

func self() string {
	path, err := os.Executable()
	if err != nil {
		return os.Args[0]
	}
	return path
}

func start(life time.Duration, command string, args ...string) (*child, error) {
	cmd := exec.Command(self(), append([]string{command, "--life", life.String()}, args...)...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c := &child{cmd: cmd, stdin: stdin}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		c.stop()
		return nil, fmt.Errorf("%s did not start", command)
	}
	c.addr = strings.TrimSpace(line)
	return c, nil
}

func (c *child) stop() {
	c.stdin.Close()
	_ = c.cmd.Wait()
}

// cpu is the processor time that the child has used, 0 where the system does not tell (elsewhere than on Linux).
func (c *child) cpu() time.Duration {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(c.cmd.Process.Pid) + "/stat")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // the name before it may hold anything
	f := strings.Fields(rest)
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.ParseInt(f[11], 10, 64)
	system, _ := strconv.ParseInt(f[12], 10, 64)
	return time.Duration(user+system) * 10 * time.Millisecond // USER_HZ is 100 wherever Go runs
}

// announce tells the parent where a child listens, and has the process end in time.
func announce(addr net.Addr, life time.Duration) {
	fmt.Println(addr)
	time.AfterFunc(life, func() { os.Exit(1) })
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
}
