// Package watch tells when one of some files has changed.
//
// It looks at them at an interval and goes by what they hold, not by what happened to them: a file that is edited in place, one that
// is replaced by a rename, and one that is reached over a symbolic link that now leads elsewhere, as Kubernetes swaps the
// directories of ConfigMaps and Secrets, are all the same to it, and so they are on file systems that send no notifications. A look
// reads every file, which costs some tens of microseconds for each of a few kilobytes.
package watch

import (
	"context"
	"crypto/sha256"
	"io"
	"maps"
	"os"
	"slices"
	"sync"
	"time"
)

// MaxBytes is how much of a file is read at a look. Of a larger one its size and time of modification count for the rest.
const MaxBytes = 1 << 20

// patience is how many looks a change that has settled waits for other files that go on changing.
const patience = 10

// A Watcher looks at files. It is safe for concurrent use.
type Watcher struct {
	changed func(paths []string)
	wake    chan struct{} // the interval has changed

	setting sync.Mutex // one Watch at a time; held while files are read, mu is not

	mu       sync.Mutex
	interval time.Duration // 0 = no looks
	files    map[string]*file
	held     int // looks since a settled change began to wait
}

// A file is a path and what was seen there.
type file struct{ known, last state } // when it was reported last, or first seen; at the last look

// A state is what a file holds, as far as that is read; the zero value is that there is none.
type state struct {
	there   bool
	size    int64
	changed int64 // when, of one that is not read to its end
	sum     [sha256.Size]byte
}

// New returns a watcher that watches nothing yet. It calls changed from [Watcher.Run] with the paths of the files that have changed
// since they were first seen or last reported, sorted; no lock is held and no look is made meanwhile. It may call
// [Watcher.Watch].
func New(changed func(paths []string)) *Watcher {
	return &Watcher{changed: changed, wake: make(chan struct{}, 1)}
}

// Watch sets the files and the interval between looks, in place of those before. An interval of 0 or less watches nothing.
//
// What a new file holds now, or that there is none, is what it has to differ from to be reported; whoever is going to read the
// files therefore calls Watch first. A file that was watched already keeps what is known of it, so that no change gets lost.
// Of files that cannot be read for any reason, and of what is not a regular file, it is as if there were none.
func (w *Watcher) Watch(interval time.Duration, paths ...string) {
	w.setting.Lock()
	defer w.setting.Unlock()
	if interval <= 0 {
		interval, paths = 0, nil
	}

	w.mu.Lock()
	before := w.files // its map is not written to, only replaced
	w.mu.Unlock()
	files := make(map[string]*file, len(paths))
	for _, path := range paths {
		if f := before[path]; f != nil {
			files[path] = f
		} else if files[path] == nil {
			now := read(path)
			files[path] = &file{known: now, last: now}
		}
	}

	w.mu.Lock()
	w.files = files
	other := w.interval != interval
	w.interval = interval
	w.mu.Unlock()
	if other {
		select {
		case w.wake <- struct{}{}:
		default: // Run will see the newest anyway
		}
	}
}

// Note takes what the files hold now for reported. It is for whoever reads them without having been told that they changed, before it
// reads: a change back to what was reported last would be none otherwise.
func (w *Watcher) Note() {
	w.setting.Lock()
	defer w.setting.Unlock()
	w.mu.Lock()
	files := w.files
	w.mu.Unlock()
	seen := make(map[string]state, len(files))
	for path := range files {
		seen[path] = read(path)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for path, f := range files {
		f.known, f.last = seen[path], seen[path]
	}
}

// Run looks at the files at the interval until the context ends; a look or a call of changed that is under way is finished. A
// change is reported when two looks in a row see all files the same, so that neither a half-written file is, nor a certificate
// before its key; files that go on changing hold the others up for ten looks at most. A file that is gone is not a change; one
// that is back is, if it is another. Run is called once at a time.
func (w *Watcher) Run(ctx context.Context) {
	for {
		w.mu.Lock()
		interval := w.interval
		w.mu.Unlock()
		var tick <-chan time.Time
		if interval > 0 {
			tick = time.After(interval)
		}
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
		case <-tick:
			if paths := w.look(); len(paths) > 0 {
				w.changed(paths)
			}
		}
	}
}

// look returns the files whose change is to be reported.
func (w *Watcher) look() []string {
	w.mu.Lock()
	files := w.files
	w.mu.Unlock()
	seen := make(map[string]state, len(files))
	for path := range files {
		seen[path] = read(path)
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	calm := true
	var settled []string
	for _, path := range slices.Sorted(maps.Keys(files)) {
		f, now := files[path], seen[path]
		if w.files[path] != f {
			continue // is watched no more, or was and is again since
		}
		switch {
		case now != f.last:
			calm = false
		case now.there && now != f.known:
			settled = append(settled, path)
		}
		f.last = now
	}
	if len(settled) > 0 && !calm {
		if w.held++; w.held < patience {
			return nil
		}
	}
	w.held = 0
	for _, path := range settled {
		files[path].known = files[path].last
	}
	return settled
}

func read(path string) state {
	// Before it is opened: opening a pipe waits for who writes to it.
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return state{}
	}
	f, err := os.Open(path)
	if err != nil {
		return state{}
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return state{}
	}
	s := state{there: true, size: info.Size()}
	if s.size > MaxBytes {
		s.changed = info.ModTime().UnixNano()
	}
	h := sha256.New()
	if _, err := io.Copy(h, io.LimitReader(f, MaxBytes)); err != nil {
		return state{}
	}
	h.Sum(s.sum[:0])
	return s
}
