package cortexhttp

import (
	"context"

	"github.com/seed-a29ca62a/cortex"
)

// PriorityFrom is the priority that [WithPriority] gave the context, for layers of other protocols.
func PriorityFrom(ctx context.Context) (cortex.Priority, bool) {
	p, ok := ctx.Value(priorityKey{}).(cortex.Priority)
	return p, ok
}
