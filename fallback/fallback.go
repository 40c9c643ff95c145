// Package fallback is the ladder of answers for a call that is refused or fails for good: a fresh-enough cached answer, a
// static one, a function; else the error stands.
//
//	ladder := fallback.Ladder[Balance]{
//		fallback.Cached(cache, account, 5*time.Minute),
//		fallback.Static(Balance{Unknown: true}),
//	}
//	if answer, ok := ladder.Answer(ctx, err); ok {
//		...
//	}
//
// An answer carries its [Source]: a fallback is marked as one, and never counts as a success of the target.
package fallback

import (
	"context"
	"fmt"
	"time"
)

// A Source says which kind of rung gave an answer.
type Source uint8

const (
	None       Source = iota // no fallback: the target's own answer, or none at all
	FromCache                // an earlier answer of the target, see Result.Age
	FromStatic               // a constant
	FromFunc                 // a function
)

var sourceNames = [...]string{"none", "cache", "static", "func"}

// String returns none, cache, static or func.
func (s Source) String() string {
	if int(s) < len(sourceNames) {
		return sourceNames[s]
	}
	return fmt.Sprintf("Source(%d)", uint8(s))
}

// A Result is what the caller gets instead of the target's answer.
type Result[T any] struct {
	Value  T
	Source Source
	Age    time.Duration // since the target gave the answer, ≥ 0; 0 if it did not come from a cache
}

// A Step is one rung: it answers in place of the target that failed with cause, or reports false. [Static], [Func] and [Cached]
// make them; a Step of one's own that leaves the Source unset is marked [FromFunc]. A Step that is shared between calls must be
// safe for concurrent use; those of this package are.
type Step[T any] func(ctx context.Context, cause error) (Result[T], bool)

// A Ladder is tried from its first rung to its last.
type Ladder[T any] []Step[T]

// Answer returns the answer of the first rung that has one, or false, upon which the caller returns cause. A context that is
// done does not keep a rung from answering, for a cached or static answer costs nothing; a function sees ctx and decides for
// itself. A rung that panics takes its caller with it: that is a fault in the program and not the absence of an answer.
func (l Ladder[T]) Answer(ctx context.Context, cause error) (Result[T], bool) {
	for _, step := range l {
		if step == nil {
			continue
		}
		if r, ok := step(ctx, cause); ok {
			if r.Source == None {
				r.Source = FromFunc
			}
			return r, true
		}
	}
	return Result[T]{}, false
}

// Static answers v, always. All callers share v: what it points to must not be changed.
func Static[T any](v T) Step[T] {
	return func(context.Context, error) (Result[T], bool) {
		return Result[T]{Value: v, Source: FromStatic}, true
	}
}

// Func answers what f returns; if f returns an error, the ladder goes on. A nil f has no answer.
func Func[T any](f func(ctx context.Context, cause error) (T, error)) Step[T] {
	return func(ctx context.Context, cause error) (Result[T], bool) {
		if f == nil {
			return Result[T]{}, false
		}
		v, err := f(ctx, cause)
		if err != nil {
			return Result[T]{}, false
		}
		return Result[T]{Value: v, Source: FromFunc}, true
	}
}

// Cached answers what c holds for key, if it is at most maxAge old; see [Cache.Get]. A nil c has no answer.
func Cached[T any](c *Cache[T], key string, maxAge time.Duration) Step[T] {
	return func(context.Context, error) (Result[T], bool) {
		if c == nil {
			return Result[T]{}, false
		}
		v, age, ok := c.Get(key, maxAge)
		if !ok {
			return Result[T]{}, false
		}
		return Result[T]{Value: v, Source: FromCache, Age: age}, true
	}
}
