package balance

import (
	"fmt"
	"net/url"
	"time"
)

// Kind is what happened.
type Kind uint8

const (
	Ejected      Kind = iota // for its failures, for a time
	Returned                 // from an ejection
	CheckedOut               // after bad checks
	CheckedIn                // after good ones
	Added                    // an address that a lookup found
	Removed                  // a member that lookups do not find any more; its idle connections can be closed
	LookupFailed             // or brought no address: what was known stays
)

func (k Kind) String() string {
	names := [...]string{"ejected", "returned", "checked out", "checked in", "added", "removed", "lookup failed"}
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("Kind(%d)", uint8(k))
}

// An Event is a change of a member or, with LookupFailed, of none.
type Event struct {
	Kind     Kind
	Member   *Member       // nil with LookupFailed
	Endpoint *url.URL      // with LookupFailed; else see Member
	For      time.Duration // with Ejected: how long
	Err      error         // with CheckedOut and LookupFailed
}
