package proof

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
)

// redisServer is a real redis-server of a test's own.
type redisServer struct {
	t    *testing.T
	addr string
	cmd  *exec.Cmd
}

func startRedis(t *testing.T) *redisServer {
	t.Helper()
	l := listenLocal(t)
	s := &redisServer{t: t, addr: l.Addr().String()}
	l.Close()
	s.start()
	t.Cleanup(s.kill)
	return s
}

func (s *redisServer) start() {
	s.t.Helper()
	program, err := exec.LookPath("redis-server")
	if err != nil {
		missing(s.t, "redis-server: %v", err)
	}
	_, port, _ := net.SplitHostPort(s.addr)
	s.cmd = exec.Command(program, "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", s.t.TempDir())
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if c, err := net.Dial("tcp", s.addr); err == nil {
			c.Close()
			return
		}
		if time.Now().After(end) {
			s.t.Fatal("redis-server does not answer")
		}
	}
}

func (s *redisServer) kill() {
	if s.cmd != nil {
		s.cmd.Process.Kill()
		s.cmd.Wait()
		s.cmd = nil
	}
}

// An instance is a process of a fleet.
type fleetProcess struct {
	cmd    *exec.Cmd
	stderr bytes.Buffer
	prober atomic.Bool
	epoch  atomic.Uint64
	alone  atomic.Bool
	result fleetResult
	done   chan error
}

func startInstance(t *testing.T, o fleetOrder) *fleetProcess {
	t.Helper()
	text, err := json.Marshal(&o)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &fleetProcess{cmd: exec.Command(self), done: make(chan error, 1)}
	p.cmd.Env = append(os.Environ(), fleetEnv+"="+string(text))
	p.cmd.Stderr = &p.stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.cmd.Process.Kill() })
	go func() {
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		err := error(nil)
		for lines.Scan() {
			line := lines.Text()
			if strings.HasPrefix(line, "{") {
				err = json.Unmarshal([]byte(line), &p.result)
				continue
			}
			var prober bool
			var epoch uint64
			var mode string
			if _, err := fmt.Sscan(line, &prober, &epoch, &mode); err == nil {
				p.prober.Store(prober)
				p.epoch.Store(epoch)
				p.alone.Store(mode == "alone")
			}
		}
		if e := p.cmd.Wait(); err == nil {
			err = e
		}
		p.done <- err
	}()
	return p
}

func (p *fleetProcess) wait(t *testing.T) fleetResult {
	t.Helper()
	if err := <-p.done; err != nil {
		t.Fatalf("an instance: %v\n%s", err, p.stderr.String())
	}
	return p.result
}

// workers is an upstream of so many workers and a queue, as the laboratory's rig.
type workers struct {
	free   chan struct{}
	queued atomic.Int64
	slow   atomic.Int64 // service time, times as long, in thousandths
	fail   atomic.Bool
	mu     sync.Mutex
	rand   *rand.Rand
	flight atomic.Int64
	most   atomic.Int64 // at a time, since it was reset
	served atomic.Int64
}

func newWorkers(n int) *workers {
	w := &workers{free: make(chan struct{}, n), rand: rand.New(rand.NewPCG(1, 2))}
	w.slow.Store(1000)
	return w
}

const serviceMean = 40 * time.Millisecond

func (w *workers) service() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	const sigma = 0.8
	x := math.Exp(w.rand.NormFloat64()*sigma - sigma*sigma/2)
	return time.Duration(x * float64(serviceMean) * float64(w.slow.Load()) / 1000)
}

func (w *workers) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	n := w.flight.Add(1)
	defer w.flight.Add(-1)
	for m := w.most.Load(); n > m && !w.most.CompareAndSwap(m, n); m = w.most.Load() {
	}
	w.served.Add(1)
	if w.fail.Load() {
		time.Sleep(5 * time.Millisecond)
		rw.WriteHeader(http.StatusInternalServerError)
		return
	}
	if w.queued.Add(1) > 2000 {
		w.queued.Add(-1)
		rw.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.free <- struct{}{} // work that nobody waits for any more is done all the same
	w.queued.Add(-1)
	time.Sleep(w.service())
	<-w.free
	io.WriteString(rw, "ok")
}

func sum(list []int, from, to int) (n int) {
	for _, k := range list[from:min(to, len(list))] {
		n += k
	}
	return n
}

// Sixteen processes that share what they see, before one upstream with a brownout and a spike, against one process that sees all the load.
func TestFleetOfProcesses(t *testing.T) {
	if !slow() {
		t.Skip("CORTEX_SLOW=1 runs it")
	}
	const calm, fault = 12, 15
	const seconds = calm + fault + calm + fault + calm
	run := func(n int, share bool) (good, offered [3]int) {
		w := newWorkers(14) // 350 calls a second
		up := "http://" + upstream(t, w)
		redis := startRedis(t)
		start := time.Now().Add(2 * time.Second)
		o := fleetOrder{Upstream: up, Start: start.UnixMilli(), Seconds: seconds, Interval: 250 * time.Millisecond, Deadline: 3 * time.Second}
		if share {
			o.Redis = "redis://" + redis.addr
		}
		const rate = 208.0
		for _, l := range []fleetLoad{{0, rate}, {calm + fault + calm, 3 * rate}, {calm + fault + calm + fault, rate}} {
			o.Load = append(o.Load, fleetLoad{l.From, l.Rate / float64(n)})
		}
		var all []*fleetProcess
		for i := range n {
			o.Seed = uint64(i + 1)
			all = append(all, startInstance(t, o))
		}
		time.Sleep(time.Until(start.Add(calm * time.Second)))
		w.slow.Store(3000)
		time.Sleep(time.Until(start.Add((calm + fault) * time.Second)))
		w.slow.Store(1000)
		failed, epoch := uint64(0), uint64(0)
		bySecond := make([]int, seconds)
		for _, p := range all {
			r := p.wait(t)
			for s, n := range r.Good {
				bySecond[s] += n
			}
			for k, part := range [...][2]int{{0, seconds}, {calm, calm + fault + calm}, {calm + fault + calm, seconds}} {
				good[k] += sum(r.Good, part[0], part[1])
				offered[k] += sum(r.Offered, part[0], part[1])
			}
			if share {
				failed += r.Status.Targets[0].Exchange.Failed
				epoch = max(epoch, r.Status.Targets[0].Epoch)
			}
		}
		t.Logf("%d processes, sharing %t: %d of %d calls well, of brownout and after %d of %d, of spike and after %d of %d; %d exchanges failed, %d transitions of the circuit", n, share, good[0], offered[0], good[1], offered[1], good[2], offered[2], failed, epoch)
		t.Log("goodput by second: ", bySecond)
		return good, offered
	}
	for try := 1; ; try++ {
		one, offeredOne := run(1, false)
		many, offered := run(16, true)
		ratio := [3]float64{}
		for k, name := range [...]string{"in all", "brownout and after", "spike and after"} {
			ratio[k] = float64(many[k]) / float64(one[k])
			// Arrivals are drawn: what was offered differs, too.
			t.Logf("%s: goodput of 16 processes ÷ that of one: %.3f (offered: %.3f)", name, ratio[k], float64(offered[k])/float64(offeredOne[k]))
		}
		if try == 1 {
			none, _ := run(16, false)
			t.Logf("16 processes that share nothing: %.3f in all, %.3f, %.3f", float64(none[0])/float64(one[0]), float64(none[1])/float64(one[1]),
				float64(none[2])/float64(one[2]))
		}
		if ratio[0] >= 0.95 && min(ratio[1], ratio[2]) >= 0.9 {
			return
		}
		if try == 2 {
			t.Fatalf("goodput %.3f of that of one process that sees all, want 0.95", ratio[0])
		}
	}
}

// Redis is killed under load, for ten seconds (three without CORTEX_SLOW): nothing fails, and asking takes no longer.
func TestFleetWithoutRedis(t *testing.T) {
	gone := 3
	if slow() {
		gone = 10
	}
	const calm = 3
	seconds := calm + gone + calm
	redis := startRedis(t)
	start := time.Now().Add(2 * time.Second)
	var all []*fleetProcess
	for i := range 4 {
		all = append(all, startInstance(t, fleetOrder{Redis: "redis://" + redis.addr, Start: start.UnixMilli(), Seconds: seconds, Seed: uint64(i + 1),
			Interval: 250 * time.Millisecond, Deadline: time.Second, Quick: true, Load: []fleetLoad{{0, 250}}}))
	}
	time.Sleep(time.Until(start.Add(calm * time.Second)))
	redis.kill()
	time.Sleep(time.Until(start.Add(time.Duration(calm+gone) * time.Second)))
	redis.start()
	quiet, lost := 0.0, 0.0
	for _, p := range all {
		r := p.wait(t)
		if n := sum(r.Failed, 0, seconds) + sum(r.Refused, 0, seconds); n > 0 {
			t.Errorf("%d calls failed or were refused", n)
		}
		quiet, lost = quiet+mean(r.P99[1:calm])/4, lost+mean(r.P99[calm:calm+gone])/4
		if len(r.Events) != 3 || r.Status.Mode != "fleet" {
			t.Errorf("%v, %+v", r.Events, r.Status)
		}
		if n := strings.Count(p.stderr.String(), "\n"); n > 10 {
			t.Errorf("%d lines were logged:\n%s", n, p.stderr.String())
		}
	}
	t.Logf("p99 of a call that does nothing: %.0f µs with Redis, %.0f µs without", quiet, lost)
	if lost-quiet > 1000 {
		t.Errorf("p99 rose by %.0f µs", lost-quiet)
	}
}

func mean(list []float64) float64 {
	s := 0.0
	for _, x := range list {
		s += x
	}
	return s / float64(max(1, len(list)))
}

// Latency, black holes, resets and little bandwidth between an instance and Redis: it says when it is alone, comes back, and no call waits.
func TestFleetBehindBadLinks(t *testing.T) {
	for _, toxic := range []string{
		`{"name":"x","type":"latency","stream":"downstream","attributes":{"latency":2000}}`,
		`{"name":"x","type":"timeout","stream":"upstream","attributes":{"timeout":0}}`,
		`{"name":"x","type":"timeout","stream":"downstream","attributes":{"timeout":0}}`,
		`{"name":"x","type":"reset_peer","stream":"downstream","attributes":{"timeout":5}}`,
		`{"name":"x","type":"limit_data","stream":"downstream","attributes":{"bytes":100}}`,
		`{"name":"x","type":"bandwidth","stream":"upstream","attributes":{"rate":1}}`,
		"cut",
	} {
		t.Run(nameOf(toxic), func(t *testing.T) {
			t.Parallel()
			behindBadLink(t, toxic)
		})
	}
}

func nameOf(toxic string) string {
	var is struct{ Type, Stream string }
	if json.Unmarshal([]byte(toxic), &is) != nil {
		return toxic
	}
	return is.Type + " " + is.Stream
}

func behindBadLink(t *testing.T, toxic string) {
	redis := startRedis(t)
	link := newLink(t, "redis "+nameOf(toxic), redis.addr)
	start := time.Now().Add(time.Second)
	var all []*fleetProcess
	for i := range 3 { // two of three behind it
		addr := redis.addr
		if i > 0 {
			addr = link.addr
		}
		all = append(all, startInstance(t, fleetOrder{Redis: "redis://" + addr, Start: start.UnixMilli(), Seconds: 7, Seed: uint64(i + 1),
			Interval: 50 * time.Millisecond, Deadline: time.Second, Quick: true, Load: []fleetLoad{{0, 300}}}))
	}
	time.Sleep(time.Until(start.Add(2 * time.Second)))
	if toxic == "cut" {
		within(2*time.Second, link.proxy.Stop)
	} else if _, err := link.proxy.Toxics.AddToxicJson(strings.NewReader(toxic)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(1500 * time.Millisecond)
	alone := 0
	for _, p := range all[1:] {
		if p.alone.Load() {
			alone++
		}
	}
	if alone != 2 || all[0].alone.Load() {
		t.Errorf("%d of two are alone, the third: %t", alone, all[0].alone.Load())
	}
	// A toxiproxy may lock itself up with a toxic whose data nobody takes: another one takes its place.
	within(2*time.Second, link.proxy.Stop)
	link.proxy = toxiproxy.NewProxy(toxiproxies(), link.name+" again", link.addr, redis.addr)
	if err := link.proxy.Start(); err != nil {
		t.Fatal(err)
	}
	worst := 0.0
	for _, p := range all {
		r := p.wait(t)
		if n := sum(r.Failed, 0, 7) + sum(r.Refused, 0, 7); n > 0 {
			t.Errorf("%d calls failed or were refused", n)
		}
		if r.Status.Mode != "fleet" {
			t.Errorf("not back: %+v", r.Status)
		}
		worst = max(worst, mean(r.P99[2:5]))
		if n := strings.Count(p.stderr.String(), "\n"); n > 10 {
			t.Errorf("%d lines were logged", n)
		}
	}
	t.Logf("p99 of a call that does nothing %.0f µs", worst)
	if worst > 1000 {
		t.Errorf("p99 of a call that does nothing %.0f µs", worst)
	}
}

// Processes are killed, and paused with the right to probe, while the upstream fails: it never sees two probes at a time.
func TestFleetProbesOneAtATime(t *testing.T) {
	w := newWorkers(14)
	up := "http://" + upstream(t, w)
	redis := startRedis(t)
	start := time.Now().Add(time.Second)
	const seconds = 14
	var all []*fleetProcess
	for i := range 6 {
		all = append(all, startInstance(t, fleetOrder{Redis: "redis://" + redis.addr, Upstream: up, Start: start.UnixMilli(), Seconds: seconds, Seed: uint64(i + 1),
			Interval: 50 * time.Millisecond, Deadline: time.Second, Load: []fleetLoad{{0, 40}}}))
	}
	time.Sleep(time.Until(start.Add(2 * time.Second)))
	w.fail.Store(true)
	time.Sleep(1500 * time.Millisecond)
	for _, p := range all {
		if p.epoch.Load()&1 == 0 {
			t.Errorf("a circuit is closed: epoch %d", p.epoch.Load())
		}
	}
	w.most.Store(0)
	served := w.served.Load()
	paused, seen := 0, 0
	killed := false
	for end := time.Now().Add(6 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		for i, p := range all {
			if !p.prober.Load() || killed && i == 0 {
				continue
			}
			if i == 0 {
				killed = true
				p.cmd.Process.Kill()
				continue
			}
			p.prober.Store(false)
			if seen++; seen%4 != 0 {
				continue
			}
			p.cmd.Process.Signal(syscall.SIGSTOP)
			paused++
			time.AfterFunc(700*time.Millisecond, func() { p.cmd.Process.Signal(syscall.SIGCONT) })
		}
	}
	t.Logf("%d probes, at most %d at a time; %d pauses, killed: %t", w.served.Load()-served, w.most.Load(), paused, killed)
	if w.most.Load() > 1 || w.served.Load() == served {
		t.Errorf("%d probes, %d at a time", w.served.Load()-served, w.most.Load())
	}
	if paused == 0 {
		t.Error("nobody who had the right to probe was paused")
	}
	w.fail.Store(false)
	for i, p := range all {
		if i == 0 && killed {
			continue
		}
		r := p.wait(t)
		if r.Open[seconds-1] {
			t.Error("a circuit is open at the end")
		}
		if r.Status.Mode != "fleet" {
			t.Errorf("%+v", r.Status)
		}
	}
}
