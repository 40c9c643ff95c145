package cluster_test

import (
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/cluster"
)

// A master, a replica and three sentinels, of this test's own. The master dies: the sentinels choose the replica, which knows no script; the
// instances find it, the circuit that is open stays so, and one probe at a time is still all there is.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	master := startRedis(t)
	replica := startRedis(t, "--replicaof", "127.0.0.1", fmt.Sprint(master.port))
	eventually(t, 20*time.Second, "the replica follows", func() bool {
		return strings.Contains(replica.db.Info(bg, "replication").Val(), "master_link_status:up")
	})
	var sentinels []string
	for range 3 {
		sentinels = append(sentinels, startSentinel(t, master.port))
	}
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: sentinels[0]})
	t.Cleanup(func() { sentinel.Close() })
	eventually(t, 20*time.Second, "sentinels and replica know each other", func() bool {
		r, _ := sentinel.Replicas(bg, "main").Result()
		s, _ := sentinel.Sentinels(bg, "main").Result()
		return len(r) == 1 && len(s) == 2
	})
	url := "redis+sentinel://" + strings.Join(sentinels, ",") + "/main"
	var all []*instance
	for range 3 {
		all = append(all, join(t, url))
	}
	together(t, all)
	open(t, all)
	closed, stop := watch(all)
	master.kill()
	eventually(t, 30*time.Second, "the replica is the master", func() bool {
		return strings.Contains(replica.db.Info(bg, "replication").Val(), "role:master")
	})
	together(t, all)
	eventually(t, 10*time.Second, "there are slots in the new master", func() bool { return len(replica.db.Keys(bg, "{cortex:wallet}:slot:*").Val()) > 0 })
	time.Sleep(10 * interval)
	stop()
	if n := closed.Load(); n > 0 {
		t.Errorf("a circuit was closed %d times", n)
	}
	for _, i := range all {
		if st := i.Status().Targets[0]; st.Mode != cluster.Fleet || st.Epoch != 1 {
			t.Errorf("%+v", st)
		}
	}
}

func startSentinel(t *testing.T, master int) string {
	t.Helper()
	program, err := exec.LookPath("redis-server") // which is a sentinel with --sentinel
	if err != nil {
		missing(t, "redis-server", err)
	}
	port, dir := freePort(t), t.TempDir()
	conf := filepath.Join(dir, "sentinel.conf")
	text := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\nsentinel monitor main 127.0.0.1 %d 2\nsentinel down-after-milliseconds main 500\n"+
		"sentinel failover-timeout main 3000\nsentinel parallel-syncs main 1\n", port, dir, master)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, conf, "--sentinel")
	out := &logBuffer{}
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Log(out.String())
		}
	})
	return fmt.Sprintf("127.0.0.1:%d", port)
}

// Three nodes. Targets are spread over them by their hash tags, one round trip asks all; where a node dies, its targets' guards are alone and the
// others go on.
func TestThreeNodes(t *testing.T) {
	t.Parallel()
	var nodes []*server
	var addrs []string
	create := []string{"--cluster", "create"}
	for range 3 {
		n := startRedis(t, "--cluster-enabled", "yes", "--cluster-port", fmt.Sprint(freePort(t)), "--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no")
		nodes, addrs = append(nodes, n), append(addrs, n.addr())
	}
	cli, err := exec.LookPath("redis-cli")
	if err != nil {
		missing(t, "redis-cli", err)
	}
	if out, err := exec.Command(cli, append(append(create, addrs...), "--cluster-yes")...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, n := range nodes {
		eventually(t, 20*time.Second, "the cluster is one", func() bool { return strings.Contains(n.db.ClusterInfo(bg).Val(), "cluster_state:ok") })
	}
	var all []*instance
	engines := map[string][]*cortex.Engine{}
	for range 3 {
		i := join(t, "redis+cluster://"+strings.Join(addrs, ","))
		for n := range 11 {
			e, err := cortex.New(cortex.Config{Name: fmt.Sprint("target ", n)})
			if err != nil {
				t.Fatal(err)
			}
			if err := i.Guard(e); err != nil {
				t.Fatal(err)
			}
			engines[e.Name()] = append(engines[e.Name()], e)
		}
		all = append(all, i)
	}
	whole := func() bool {
		for _, i := range all {
			for _, s := range i.Status().Targets {
				if s.Mode != cluster.Fleet || s.Seen != 3 {
					return false
				}
			}
		}
		return true
	}
	eventually(t, 30*time.Second, "all targets of all instances are shared", whole)
	used := 0
	for _, n := range nodes {
		if k := n.db.DBSize(bg).Val(); k > 0 {
			used++
		}
	}
	if used != 3 {
		t.Errorf("keys on %d nodes", used)
	}
	list := engines["target 3"]
	eventually(t, 20*time.Second, "the circuit of one target opens for all", func() bool {
		n := 0
		for _, e := range list {
			if p, err := e.Admit(bg, 5); err == nil {
				p.Record(cortex.Failed)
			}
			if e.Pressure().Circuit != breaker.Closed {
				n++
			}
		}
		return n == 3
	})
	nodes[0].kill()
	eventually(t, 30*time.Second, "some are alone, the others are not", func() bool {
		for _, i := range all {
			alone := 0
			for _, s := range i.Status().Targets {
				if s.Mode == cluster.Alone {
					alone++
				}
			}
			if alone == 0 || alone == 12 {
				return false
			}
		}
		return true
	})
	nodes[0].restart()
	eventually(t, 30*time.Second, "all targets of all instances are shared again", whole)
}

// A connection that takes longer to make than an exchange may take is made all the same, and then used.
func TestSlowHandshake(t *testing.T) {
	s := startRedis(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				time.Sleep(300 * ms)
				out, err := net.Dial("tcp", s.addr())
				if err != nil {
					in.Close()
					return
				}
				go func() { io.Copy(out, in); out.Close() }()
				io.Copy(in, out)
				in.Close()
			}()
		}
	}()
	i := join(t, "redis://"+l.Addr().String(), func(c *cluster.Config, _ *cortex.Config) { c.Timeout = 100 * ms })
	eventually(t, 20*time.Second, "it shares", func() bool { return i.Status().Mode == cluster.Fleet })
	failed := i.Status().Targets[0].Exchange.Failed
	time.Sleep(500 * ms)
	if x := i.Status().Targets[0].Exchange; x.Failed > failed+1 || x.OK < 10 {
		t.Errorf("%+v", x)
	}
}
