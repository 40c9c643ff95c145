package front

import "fmt"

// descriptorsOwn is what a process has open beside connections: listeners, logs, the poller, lookups, files that are read again;
// and a margin.
const descriptorsOwn = 64

// maxFromDescriptors is the most that MaxConnectionsFor says, where the limit is none.
const maxFromDescriptors = 1 << 20

// DescriptorLimit is the number of file descriptors that the process may have open. Go raises it to the system's hard limit at
// start. It reports false where there is no such limit or it cannot be known.
func DescriptorLimit() (soft uint64, ok bool) { return descriptorLimit() }

// MaxConnectionsFor is how many connections of clients a number of file descriptors is enough for: each may need a second one, to
// an upstream. Other descriptors that are known of, pools of idle connections for one, are left out. It is at least 1.
func MaxConnectionsFor(descriptors uint64, other int) int {
	own := uint64(descriptorsOwn + max(other, 0))
	if descriptors <= own+2 {
		return 1
	}
	return int(min((descriptors-own)/2, maxFromDescriptors))
}

// A DescriptorError says that there may be more connections than there are file descriptors for.
type DescriptorError struct {
	MaxConnections int    // that was asked for
	Need           uint64 // file descriptors
	Limit          uint64 // of file descriptors
	Fits           int    // connections that the limit is enough for
}

func (e *DescriptorError) Error() string {
	return fmt.Sprintf("%d connections may need %d file descriptors (two for each and some more), and the limit is %d: "+
		"raise it (ulimit -n, LimitNOFILE= of systemd) or set server.max_connections to %d at most",
		e.MaxConnections, e.Need, e.Limit, e.Fits)
}

// CheckDescriptors returns a [*DescriptorError] if the limit of file descriptors is not enough for that many connections, with
// other ones as in [MaxConnectionsFor]. Where the limit is not known there is no error.
func CheckDescriptors(maxConnections, other int) error {
	soft, ok := DescriptorLimit()
	if !ok {
		return nil
	}
	return checkDescriptors(soft, maxConnections, other)
}

func checkDescriptors(soft uint64, maxConnections, other int) error {
	need := 2*uint64(max(maxConnections, 0)) + uint64(descriptorsOwn+max(other, 0))
	if need <= soft {
		return nil
	}
	return &DescriptorError{MaxConnections: maxConnections, Need: need, Limit: soft, Fits: MaxConnectionsFor(soft, other)}
}
