package cluster

import (
	"time"
)

// A Mode says whether a guard acts with its fleet.
type Mode string

const (
	Fleet Mode = "fleet" // it knows what the others see
	Alone Mode = "alone" // it decides by what it has seen itself
)

// A Status is how a [Cluster] fares.
type Status struct {
	Instance string         // its name in the fleet, drawn at random
	Mode     Mode           // Fleet if that of every target is
	Targets  []TargetStatus // in the order in which they were registered
	Syncs    uint64         // round trips that were made
	Reloads  uint64         // times that Redis did not know the script and was sent it
}

// A TargetStatus is how one target's guard fares in its fleet.
type TargetStatus struct {
	Target  string
	Mode    Mode
	Since   time.Duration // that it has been so
	Seen    uint64        // instances in the newest view, this one included; 0 while alone
	ViewAge time.Duration // since the end of what the newest view covers; 0: there was none
	Epoch   uint64        // transitions of the fleet's circuit: odd is open
	Owner   string        // instance that made the newest one
	Prober  bool          // this one has the right to probe
	Lease   float64       // tokens of the retry budget that were leased in all
	Pool    float64       // tokens that were left in the shared budget
	// In mode exact, how many calls of the whole fleet ended well in the window, and how many did not.
	WindowOK, WindowFailed uint64
	Exchange               Exchange
	// Error is the last failure, "" if there was none since it last went well.
	Error string
}

// Exchange counts what happened to a target's exchanges with its fleet.
type Exchange struct {
	OK       uint64
	Failed   uint64
	Skipped  uint64 // not tried because of those that failed before
	Junk     uint64 // fields, keys and answers that were none, and were ignored or removed
	Dropped  uint64 // members that mode exact had no room for
	Received uint64 // bytes of the slots that were told
}

// An Event tells that a guard has changed its mode.
type Event struct {
	Target    string
	Mode      Mode
	Instances uint64 // seen, in mode fleet
	Err       error  // why it is alone
}
