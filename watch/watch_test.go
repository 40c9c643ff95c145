package watch

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

const interval = 2 * time.Second

// A bench is a watcher that runs, over real files and in virtual time.
type bench struct {
	t   *testing.T
	dir string
	w   *Watcher
	log log
}

// A log is what was reported, a report an item.
type log struct {
	mu  sync.Mutex
	got []string
}

func (l *log) add(paths []string) {
	l.mu.Lock()
	l.got = append(l.got, strings.Join(paths, " "))
	l.mu.Unlock()
}

// take returns what was reported since it was last called.
func (l *log) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	got := l.got
	l.got = nil
	return got
}

// try runs f with a watcher; f begins right after a look would have been.
func try(t *testing.T, f func(b *bench)) {
	t.Helper()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, dir: dir}
		b.w = New(func(paths []string) {
			for i, p := range paths {
				paths[i] = strings.TrimPrefix(p, dir+"/")
			}
			b.log.add(paths)
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go b.w.Run(ctx)
		f(b)
		cancel()
		synctest.Wait()
	})
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

func (b *bench) watch(names ...string) {
	for i, n := range names {
		names[i] = b.path(n)
	}
	b.w.Watch(interval, names...)
	synctest.Wait()
}

func (b *bench) do(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) write(name, content string) {
	b.t.Helper()
	b.do(os.WriteFile(b.path(name), []byte(content), 0o600))
}

// looks lets so many looks pass.
func (b *bench) looks(n int) {
	time.Sleep(time.Duration(n) * interval)
	synctest.Wait()
}

// want checks what was reported since it was last called.
func (b *bench) want(what string, reports ...string) {
	b.t.Helper()
	if got := b.log.take(); !slices.Equal(got, reports) {
		b.t.Errorf("%s: reported %q, want %q", what, got, reports)
	}
}

func TestEditedInPlace(t *testing.T) {
	try(t, func(b *bench) {
		b.write("a", "1")
		b.write("b", "1")
		b.watch("a", "b")
		b.looks(10)
		b.want("nothing was done")
		b.write("a", "2")
		b.looks(1)
		b.want("seen once only")
		b.looks(1)
		b.want("seen twice", "a")
		b.looks(10)
		b.want("reported already")
		b.write("b", "2")
		b.write("a", "3")
		b.looks(2)
		b.want("both", "a b")
	})
}

// Who reads a file untold and notes it hears of the change back to what was reported last, and not of what was read.
func TestNoted(t *testing.T) {
	try(t, func(b *bench) {
		b.write("a", "1")
		b.watch("a")
		b.write("a", "2")
		b.w.Note()
		b.looks(10)
		b.want("what was noted")
		b.write("a", "3")
		b.w.Note()
		b.write("a", "2")
		b.looks(2)
		b.want("back", "a")
		b.do(os.Remove(b.path("a")))
		b.w.Note()
		b.looks(10)
		b.want("gone")
		b.write("a", "2")
		b.looks(2)
		b.want("there again", "a")
	})
}

// By content: neither the time of a file nor a new file that holds the same is a change, and the same length and time do not hide one.
func TestContentIsWhatCounts(t *testing.T) {
	try(t, func(b *bench) {
		b.write("a", "one")
		b.watch("a")
		when := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
		b.do(os.Chtimes(b.path("a"), when, when))
		b.looks(3)
		b.write("new", "one")
		b.do(os.Rename(b.path("new"), b.path("a")))
		b.looks(3)
		b.want("touched and replaced by the same")
		b.do(os.Chtimes(b.path("a"), when, when))
		b.looks(3)
		b.write("a", "two")
		b.do(os.Chtimes(b.path("a"), when, when))
		b.looks(3)
		b.want("same length and time", "a")
		b.write("a", "tri")
		b.looks(1)
		b.write("a", "two")
		b.looks(3)
		b.want("taken back before it settled")
	})
}

// Editors write a new file and rename it over the old one.
func TestReplacedByRename(t *testing.T) {
	try(t, func(b *bench) {
		b.write("a", "1")
		b.watch("a")
		for i := range 3 {
			b.write(".a.swp", fmt.Sprint("new ", i))
			b.do(os.Rename(b.path(".a.swp"), b.path("a")))
			b.looks(2)
			b.want("renamed over it", "a")
		}
		// Or move the old one away first.
		b.do(os.Rename(b.path("a"), b.path("a~")))
		b.looks(1)
		b.write("a", "4")
		b.looks(2)
		b.want("moved away, then written", "a")
	})
}

// The kubelet writes a new directory beside the old one, then renames a symbolic link over the one that led to that.
func TestKubernetesSwap(t *testing.T) {
	try(t, func(b *bench) {
		swap := func(stamp, config, cert string) {
			b.do(os.Mkdir(b.path(stamp), 0o700))
			b.write(stamp+"/cortex.yaml", config)
			b.write(stamp+"/tls.crt", cert)
			b.do(os.Symlink(stamp, b.path("..data_tmp")))
			b.do(os.Rename(b.path("..data_tmp"), b.path("..data")))
		}
		swap("..2026_01", "1", "x")
		for _, name := range []string{"cortex.yaml", "tls.crt"} {
			b.do(os.Symlink("..data/"+name, b.path(name)))
		}
		b.watch("cortex.yaml", "tls.crt")
		b.looks(3)
		b.want("nothing was done")

		swap("..2026_02", "2", "x")
		b.do(os.RemoveAll(b.path("..2026_01")))
		b.looks(2)
		b.want("one of two is another", "cortex.yaml")
		swap("..2026_03", "3", "y")
		b.looks(2)
		b.want("both are", "cortex.yaml tls.crt")
		swap("..2026_04", "3", "y")
		b.do(os.RemoveAll(b.path("..2026_03")))
		b.looks(5)
		b.want("another directory with the same in it")
	})
}

// A file is truncated and then written, in pieces: no report of what is half of it.
func TestHalfWrittenIsNotReported(t *testing.T) {
	try(t, func(b *bench) {
		b.write("a", "old")
		b.watch("a")
		f, err := os.Create(b.path("a"))
		b.do(err)
		defer f.Close()
		for range 5 {
			b.looks(1)
			_, err := f.WriteString("some more\n")
			b.do(err)
		}
		b.looks(1)
		b.want("while it grows")
		b.looks(1)
		b.want("whole", "a")
	})
}

func TestAbsence(t *testing.T) {
	try(t, func(b *bench) {
		b.write("a", "1")
		b.watch("a", "later", "never/there")
		b.do(os.Remove(b.path("a")))
		b.looks(5)
		b.want("gone")
		b.write("a", "1")
		b.looks(5)
		b.want("back as it was")
		b.do(os.Remove(b.path("a")))
		b.looks(5)
		b.write("a", "2")
		b.looks(2)
		b.want("back as another", "a")
		b.write("later", "")
		b.looks(2)
		b.want("there for the first time, empty", "later")
		b.do(os.Remove(b.path("a")))
		b.looks(1)
		b.write("later", "x")
		b.looks(2)
		b.want("changed while another is gone", "later")
	})
}

// What cannot be read is as if it were not there, and nothing waits for it.
func TestNotAFile(t *testing.T) {
	try(t, func(b *bench) {
		b.write("a", "1")
		b.do(syscall.Mkfifo(b.path("pipe"), 0o600))
		b.do(os.Symlink("loop", b.path("loop")))
		b.do(os.Mkdir(b.path("dir"), 0o700))
		b.watch("a", "pipe", "loop", "dir")
		b.do(os.Remove(b.path("a")))
		b.do(os.Mkdir(b.path("a"), 0o700))
		b.looks(3)
		b.want("a directory in its place")
		b.do(os.Remove(b.path("a")))
		b.do(syscall.Mkfifo(b.path("a"), 0o600))
		b.looks(3)
		b.want("a pipe in its place")
		b.do(os.Remove(b.path("a")))
		b.do(os.Symlink("b", b.path("a")))
		b.write("b", "2")
		b.looks(3)
		b.want("a link in its place", "a")
	})
}

// Certificate and key are two files: a change of one waits for the other to settle, but not for ever.
func TestFilesSettleTogether(t *testing.T) {
	try(t, func(b *bench) {
		b.write("crt", "1")
		b.write("key", "1")
		b.watch("crt", "key")
		b.write("crt", "2")
		b.looks(1)
		b.write("key", "2")
		b.looks(1)
		b.want("the key has not settled")
		b.looks(1)
		b.want("both have", "crt key")

		b.write("crt", "3")
		for i := range patience {
			b.write("key", fmt.Sprint("restless ", i))
			b.looks(1)
		}
		b.want("the key is restless")
		b.write("key", "restless still")
		b.looks(1)
		b.want("it was waited for long enough", "crt")
		b.looks(1)
		b.want("it has settled", "key")
	})
}

func TestFilesMayBeChanged(t *testing.T) {
	try(t, func(b *bench) {
		for _, name := range []string{"a", "b", "c"} {
			b.write(name, "1")
		}
		b.watch("a", "b")
		b.write("a", "2")
		b.write("b", "2")
		b.write("c", "2")
		b.watch("b", "c", "b")
		b.looks(5)
		b.want("b kept what was known of it; c is as it was found", "b")
		b.write("a", "3")
		b.write("c", "3")
		b.looks(5)
		b.want("a is not watched any more", "c")
		b.w.Watch(0, b.path("a"))
		b.write("c", "4")
		b.looks(5)
		b.want("nothing is watched")
		b.watch("c")
		b.looks(5)
		b.want("as it was found, again")
		b.w.Watch(-1)
		b.w.Watch(interval)
		b.looks(5)
		b.want("no files")
	})
}

// A reload sets the files of the new configuration from within the report.
func TestFilesMayBeChangedFromTheReport(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	synctest.Test(t, func(t *testing.T) {
		a, b := write("a", "1"), write("b", "1")
		var log log
		var w *Watcher
		w = New(func(paths []string) {
			log.add(paths)
			w.Watch(time.Second, a, b)
			write("b", "while it is reported")
		})
		w.Watch(interval, a)
		ctx, cancel := context.WithCancel(t.Context())
		go w.Run(ctx)
		write("a", "2")
		time.Sleep(2 * interval)
		synctest.Wait()
		if got, want := log.take(), []string{a}; !slices.Equal(got, want) {
			t.Errorf("reported %q, want %q", got, want)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if got, want := log.take(), []string{b}; !slices.Equal(got, want) {
			t.Errorf("reported %q, want %q, at the new interval", got, want)
		}
		cancel()
		synctest.Wait()
	})
}

// To set the same interval again and again did not start the wait for the next look again and again.
func TestWatchDoesNotPutOffLooks(t *testing.T) {
	try(t, func(b *bench) {
		b.write("a", "1")
		b.watch("a")
		b.write("a", "2")
		for range 5 {
			time.Sleep(interval / 2)
			b.watch("a")
		}
		b.want("after two looks and a half", "a")
	})
}

func TestIntervalMayBeChanged(t *testing.T) {
	try(t, func(b *bench) {
		b.write("a", "1")
		b.w.Watch(time.Hour, b.path("a"))
		synctest.Wait()
		time.Sleep(time.Minute)
		b.write("a", "2")
		b.watch("a")
		b.looks(2)
		b.want("at the shorter interval", "a")
	})
}

func TestLargeFiles(t *testing.T) {
	try(t, func(b *bench) {
		large := strings.Repeat("x", MaxBytes)
		b.write("exact", large)
		b.write("large", large+"1")
		b.do(os.Truncate(b.path("large"), 1<<40)) // a hole, which no look reads
		b.watch("exact", "large")
		b.looks(3)
		b.want("nothing was done")
		b.write("exact", large[1:]+"y")
		b.looks(2)
		b.want("the last byte that is read", "exact")
		b.do(os.Truncate(b.path("large"), 1<<40+1))
		b.looks(2)
		b.want("its length", "large")
		b.write("large", large+"1")
		b.looks(2)
		b.want("shorter", "large")
		b.write("large", large+"2")
		b.do(os.Chtimes(b.path("large"), time.Time{}, time.Unix(1e9, 0)))
		b.looks(2)
		b.want("beyond what is read, by its time", "large")
		b.write("large", "small")
		b.looks(2)
		b.want("small", "large")
	})
}

func TestRunEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := New(func([]string) { t.Error("a report") })
		for range 3 { // one after the other
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			var done atomic.Bool
			go func() { w.Run(ctx); done.Store(true) }()
			w.Watch(time.Second, t.Name())
			time.Sleep(time.Minute - 1)
			synctest.Wait()
			if done.Load() {
				t.Error("ended by itself")
			}
			time.Sleep(time.Nanosecond)
			synctest.Wait()
			if !done.Load() {
				t.Error("did not end")
			}
			cancel()
		}
	})
}

// Whatever is done to the files: what a report leaves known is what the files hold once they are left alone, every file whose content
// differs in the end from what was known is reported, and none that never changed is.
func TestRandomEditsAreReportedInTheEnd(t *testing.T) {
	for seed := range uint64(5) {
		try(t, func(b *bench) {
			r := rand.New(rand.NewPCG(seed, 1))
			names := []string{"a", "b", "c", "d"}
			holds := map[string]string{} // now; "" is absent
			known := map[string]string{} // to who reads a file when it is reported
			for _, n := range names {
				b.write(n, "0")
				holds[n], known[n] = "0", "0"
			}
			b.write("quiet", "0")
			b.watch("a", "b", "c", "d", "quiet")
			read := func() {
				for _, report := range b.log.take() {
					for _, n := range strings.Fields(report) {
						if n == "quiet" {
							b.t.Errorf("seed %d: a report of what did not change", seed)
						}
						known[n] = holds[n]
					}
				}
			}
			for range 100 {
				n := names[r.IntN(len(names))]
				next := fmt.Sprint(r.IntN(4))
				switch r.IntN(4) {
				case 0:
					next = ""
					if holds[n] != "" {
						b.do(os.Remove(b.path(n)))
					}
				case 1:
					b.write(n, next)
				case 2:
					b.write("tmp", next)
					b.do(os.Rename(b.path("tmp"), b.path(n)))
				case 3:
					b.write("target"+next, next)
					os.Remove(b.path("tmp"))
					b.do(os.Symlink("target"+next, b.path("tmp")))
					b.do(os.Rename(b.path("tmp"), b.path(n)))
				}
				if target, err := os.Readlink(b.path(n)); err == nil && next != "" {
					// Written through the link: the others that lead there hold it too.
					b.write(target, next)
					for _, m := range names {
						if other, err := os.Readlink(b.path(m)); err == nil && other == target {
							holds[m] = next
						}
					}
				}
				holds[n] = next
				b.looks(r.IntN(4))
				read()
			}
			b.looks(patience)
			read()
			for _, n := range names {
				if holds[n] != "" && known[n] != holds[n] {
					b.t.Errorf("seed %d: %s holds %q, known is %q", seed, n, holds[n], known[n])
				}
			}
		})
	}
}

// Watch from many goroutines while looks go on, for the race detector.
func TestWatchIsSafeForConcurrentUse(t *testing.T) {
	dir := t.TempDir()
	var w *Watcher
	var reports atomic.Int64
	w = New(func(paths []string) {
		reports.Add(1)
		w.Watch(time.Millisecond, paths...)
	})
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() { w.Run(ctx); close(stopped) }()
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			for i := range 50 {
				path := filepath.Join(dir, fmt.Sprint((g+i)%3))
				if err := os.WriteFile(path, []byte(fmt.Sprint(g, i)), 0o600); err != nil {
					t.Error(err)
				}
				w.Watch(time.Duration(i%3)*time.Microsecond, path, filepath.Join(dir, "0"))
			}
		})
	}
	all.Wait()
	cancel()
	<-stopped
	t.Logf("%d reports", reports.Load())
}

func BenchmarkLook(b *testing.B) {
	w := New(func([]string) {})
	dir := b.TempDir()
	var paths []string
	for i := range 100 {
		path := filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(path, make([]byte, 4<<10), 0o600); err != nil {
			b.Fatal(err)
		}
		paths = append(paths, path)
	}
	w.Watch(time.Hour, paths...)
	for b.Loop() {
		w.look()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(paths)), "ns/file")
}
