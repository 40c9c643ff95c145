package fallback

import (
	"container/list"
	"fmt"
	"math"
	"sync"
	"time"
)

// Defaults of a [CacheConfig].
const (
	DefaultMaxEntries = 1000
	DefaultMaxBytes   = 64 << 20
)

// origin of the process clock that a cache uses when it is given none.
var origin = time.Now()

// A CacheConfig bounds a [Cache]. Its zero value is the documented default.
type CacheConfig[T any] struct {
	// MaxEntries is the most answers held; zero means 1,000.
	MaxEntries int
	// MaxBytes is the most bytes held, keys included; zero means 64 MiB. It needs Size.
	MaxBytes int64
	// Size returns the bytes of an answer; a negative size counts as 0. It is called by Put, outside the cache's lock. With nil,
	// only the entries are bounded.
	Size func(T) int64
	// Memory bounds what this cache and others who share it hold together, such as a quota.Quota; nil: no bound. It needs Size. Where it has
	// nothing free, the cache gives up answers of its own, as when it is full; where that is not enough, the new
	// one is not kept. It is called under the cache's lock and must not call the cache.
	Memory Memory
	// Now is a monotonic clock, as a duration since an arbitrary origin; nil means the process's. It is called under the
	// cache's lock and must not call the cache.
	Now func() time.Duration
}

// Memory is a bound on bytes that several holders share. Its methods are called from many goroutines and must not block. Reserve
// reports whether n bytes are free, and takes them; Release gives n of them back.
type Memory interface {
	Reserve(n int64) bool
	Release(n int64)
}

// A ConfigError names the field of a [CacheConfig] that cannot be used and says what would be right.
type ConfigError struct {
	Field string
	Value any
	Want  string
}

func (e *ConfigError) Error() string { return fmt.Sprintf("%s: %v: want %s", e.Field, e.Value, e.Want) }

// A Cache holds the last good answer for each key. When it is full, the answers go that were neither put nor served for the
// longest time. It is safe for concurrent use. An answer is handed out as it was put in: what it points to must not be changed.
type Cache[T any] struct {
	maxEntries int
	maxBytes   int64
	size       func(T) int64
	memory     Memory // nil = no bound
	now        func() time.Duration

	mu      sync.Mutex
	closed  bool
	entries map[string]*list.Element
	recent  list.List // of *entry[T], most recent first
	bytes   int64     // of all entries; 0 without size

	// The cache's own time is the sum of the steps forward of now. Ages taken from it go on growing after now was set back,
	// when those taken from now itself would be negative, or fresh, until the old time had come again.
	time    time.Duration
	reading time.Duration
}

type entry[T any] struct {
	key   string
	value T
	put   time.Duration // in the cache's own time
	bytes int64
}

// NewCache returns an empty cache, or a [*ConfigError] for a negative bound, or for a MaxBytes or a Memory without Size.
func NewCache[T any](c CacheConfig[T]) (*Cache[T], error) {
	switch {
	case c.MaxEntries < 0:
		return nil, &ConfigError{Field: "MaxEntries", Value: c.MaxEntries, Want: fmt.Sprintf("a number ≥ 0 (0 is %d)", DefaultMaxEntries)}
	case c.MaxBytes < 0:
		return nil, &ConfigError{Field: "MaxBytes", Value: c.MaxBytes, Want: fmt.Sprintf("a number ≥ 0 (0 is %d)", DefaultMaxBytes)}
	case c.MaxBytes > 0 && c.Size == nil:
		return nil, &ConfigError{Field: "Size", Value: "nil", Want: "a function: without it MaxBytes bounds nothing"}
	case c.Memory != nil && c.Size == nil:
		return nil, &ConfigError{Field: "Size", Value: "nil", Want: "a function: without it nothing is taken of Memory"}
	}
	if c.MaxEntries == 0 {
		c.MaxEntries = DefaultMaxEntries
	}
	if c.MaxBytes == 0 {
		c.MaxBytes = DefaultMaxBytes
	}
	if c.Now == nil {
		c.Now = func() time.Duration { return time.Since(origin) }
	}
	return &Cache[T]{
		maxEntries: c.MaxEntries,
		maxBytes:   c.MaxBytes,
		size:       c.Size,
		memory:     c.Memory,
		now:        c.Now,
		entries:    make(map[string]*list.Element),
	}, nil
}

// Put makes v the last good answer for key, with an age of 0. An answer that is by itself larger than MaxBytes, or for which there
// is no Memory, is not kept, and neither is the one before it: that is no longer the last. Once the cache is closed nothing is.
func (c *Cache[T]) Put(key string, v T) {
	bytes := int64(0)
	if c.size != nil {
		// Here and below, sizes are compared before they are added: the sum may not fit.
		bytes = max(0, c.size(v))
		if bytes > c.maxBytes-int64(len(key)) {
			c.Delete(key)
			return
		}
		bytes += int64(len(key))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tick()
	if e, ok := c.entries[key]; ok {
		c.remove(e)
	}
	if c.closed {
		return
	}
	for c.recent.Len() >= c.maxEntries || c.bytes > c.maxBytes-bytes {
		c.remove(c.recent.Back())
	}
	for c.memory != nil && !c.memory.Reserve(bytes) {
		if c.recent.Len() == 0 {
			return
		}
		c.remove(c.recent.Back())
	}
	c.entries[key] = c.recent.PushFront(&entry[T]{key: key, value: v, put: c.time, bytes: bytes})
	c.bytes += bytes
}

// Get returns the last good answer for key and its age, if it is at most maxAge old. No number means any age; [math.MaxInt64]
// comes close. An answer that is too old stays: another caller may ask for less.
func (c *Cache[T]) Get(key string, maxAge time.Duration) (v T, age time.Duration, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tick()
	element, ok := c.entries[key]
	if !ok {
		return v, 0, false
	}
	e := element.Value.(*entry[T])
	if age = c.time - e.put; age > maxAge {
		return v, 0, false
	}
	c.recent.MoveToFront(element)
	return e.value, age, true
}

// Delete forgets the answer for key.
func (c *Cache[T]) Delete(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.entries[key]; ok {
		c.remove(e)
	}
}

// Close forgets all answers and gives their Memory back; the cache keeps none from then on. A cache with a Memory that is not used
// any more must be closed, and nobody who still puts answers in need know.
func (c *Cache[T]) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.clear()
}

// Len returns the number of answers held.
func (c *Cache[T]) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.recent.Len()
}

// Bytes returns the bytes held, keys included; 0 without CacheConfig.Size.
func (c *Cache[T]) Bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes
}

func (c *Cache[T]) remove(element *list.Element) {
	e := c.recent.Remove(element).(*entry[T])
	delete(c.entries, e.key)
	c.bytes -= e.bytes
	if c.memory != nil {
		c.memory.Release(e.bytes)
	}
}

func (c *Cache[T]) clear() {
	if c.memory != nil {
		c.memory.Release(c.bytes)
	}
	c.recent.Init()
	clear(c.entries)
	c.bytes = 0
}

func (c *Cache[T]) tick() {
	reading := c.now()
	if reading > c.reading {
		// A step that does not fit a Duration is negative here. After 292 years nothing held is worth an answer.
		if step := reading - c.reading; step > 0 && c.time <= math.MaxInt64-step {
			c.time += step
		} else {
			c.time = 0
			c.clear()
		}
	}
	c.reading = reading
}
