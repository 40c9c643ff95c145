package cluster

import (
	"log/slog"
	"time"
)

// news is what the log has not been told yet of guards that joined their fleet or are alone. Redis goes and comes for all targets at once, and
// may do so again and again: there is one line for all of them, and what there is no line for is told with the next.
type news struct {
	lines int           // that may be written yet
	since time.Duration // when the last of them was added
	begun bool

	changes   int // of targets, since the last line
	alone     bool
	target    string // one of those that changed
	instances uint64
	err       error
}

const (
	newsBurst = 4 // lines at once
	newsEvery = 10 * time.Second
)

func (n *news) add(ev Event) {
	n.changes++
	if ev.Mode == Alone {
		n.alone, n.err = true, ev.Err
		n.target = ev.Target
	} else {
		n.instances = ev.Instances
		if !n.alone {
			n.target = ev.Target
		}
	}
}

// tell writes a line if there is something to tell and it may. alone is how many of all guards are so now.
func (n *news) tell(log *slog.Logger, now time.Duration, alone, all int) {
	if n.changes == 0 {
		return
	}
	switch k := (now - n.since) / newsEvery; {
	case !n.begun:
		n.begun, n.lines, n.since = true, newsBurst, now
	case k > 0:
		n.lines = int(min(newsBurst, time.Duration(n.lines)+k))
		n.since += k * newsEvery
	}
	if n.lines == 0 {
		return
	}
	n.lines--
	if n.alone && alone > 0 {
		log.Warn("cannot reach its fleet: goes on alone with what it sees itself", "targets", alone, "of", all, "changes", n.changes,
			"target", n.target, "error", n.err)
	} else {
		log.Info("shares its pressure with its fleet", "targets", all-alone, "of", all, "changes", n.changes, "target", n.target,
			"instances", n.instances)
	}
	n.changes, n.alone, n.target, n.instances, n.err = 0, false, "", 0, nil
}
