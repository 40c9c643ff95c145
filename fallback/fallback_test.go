package fallback

import (
	"context"
	"errors"
	"testing"
	"time"
)

var errDown = errors.New("down")

func TestLadderAnswersFromTheFirstRungThatCan(t *testing.T) {
	now := time.Duration(0)
	cache, err := NewCache(CacheConfig[string]{Now: func() time.Duration { return now }})
	if err != nil {
		t.Fatal(err)
	}
	cache.Put("k", "cached")
	now = 3 * time.Second

	failing := Func(func(context.Context, error) (string, error) { return "half an answer", errors.New("no") })
	answering := Func(func(_ context.Context, cause error) (string, error) { return "because " + cause.Error(), nil })
	own := Step[string](func(context.Context, error) (Result[string], bool) { return Result[string]{Value: "own"}, true })
	for _, c := range []struct {
		name   string
		ladder Ladder[string]
		want   Result[string]
		ok     bool
	}{
		{"nil ladder", nil, Result[string]{}, false},
		{"no rung", Ladder[string]{}, Result[string]{}, false},
		{"nil rungs", Ladder[string]{nil, Func[string](nil), Cached[string](nil, "k", time.Hour)}, Result[string]{}, false},
		{"only one that fails", Ladder[string]{failing}, Result[string]{}, false},
		{"cache first", Ladder[string]{Cached(cache, "k", time.Minute), Static("s")}, Result[string]{"cached", FromCache, 3 * time.Second}, true},
		{"too old, static", Ladder[string]{Cached(cache, "k", time.Second), Static("s")}, Result[string]{"s", FromStatic, 0}, true},
		{"not cached, failing, function", Ladder[string]{Cached(cache, "x", time.Hour), failing, answering, Static("s")}, Result[string]{"because down", FromFunc, 0}, true},
		{"a rung of one's own is marked", Ladder[string]{own}, Result[string]{"own", FromFunc, 0}, true},
	} {
		if got, ok := c.ladder.Answer(context.Background(), errDown); got != c.want || ok != c.ok {
			t.Errorf("%s: %+v, %v, want %+v, %v", c.name, got, ok, c.want, c.ok)
		}
	}
}

func TestRungsAfterTheAnswerAreNotAsked(t *testing.T) {
	asked := 0
	count := Func(func(context.Context, error) (int, error) { asked++; return 2, nil })
	Ladder[int]{Static(1), count}.Answer(context.Background(), errDown)
	if asked != 0 {
		t.Errorf("a function below an answer was asked %d times", asked)
	}
}

// The caller that has gone is no reason to withhold what costs nothing; a function is told.
func TestDoneContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	f := Func(func(ctx context.Context, _ error) (string, error) { return "f", ctx.Err() })
	got, ok := Ladder[string]{f, Static("s")}.Answer(ctx, errDown)
	if !ok || got.Source != FromStatic {
		t.Errorf("%+v, %v, want the static answer", got, ok)
	}
	cache, err := NewCache(CacheConfig[string]{})
	if err != nil {
		t.Fatal(err)
	}
	cache.Put("k", "c")
	if got, ok = (Ladder[string]{f, Cached(cache, "k", time.Hour)}).Answer(ctx, errDown); !ok || got.Value != "c" {
		t.Errorf("%+v, %v, want the cached answer", got, ok)
	}
}

func TestPanicInARungPropagates(t *testing.T) {
	defer func() {
		if r := recover(); r != errDown {
			t.Errorf("recovered %v, want the rung's own panic", r)
		}
	}()
	bad := Func(func(context.Context, error) (int, error) { panic(errDown) })
	Ladder[int]{bad, Static(1)}.Answer(context.Background(), nil)
	t.Error("the ladder went on after a panic")
}

func TestSourceNames(t *testing.T) {
	for s, want := range map[Source]string{None: "none", FromCache: "cache", FromStatic: "static", FromFunc: "func", 9: "Source(9)"} {
		if got := s.String(); got != want {
			t.Errorf("%d prints %q, want %q", uint8(s), got, want)
		}
	}
}
