package watch_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/seed-a29ca62a/cortex/watch"
)

func Example() {
	dir, err := os.MkdirTemp("", "watch")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "cortex.yaml")

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	w := watch.New(func(paths []string) {
		content, err := os.ReadFile(paths[0])
		fmt.Printf("%s: %s, %v\n", filepath.Base(paths[0]), content, err)
		cancel()
	})
	w.Watch(10*time.Millisecond, file) // before the file is read for the first time
	if err := os.WriteFile(file, []byte("listen: :8080"), 0o600); err != nil {
		fmt.Println(err)
		return
	}
	w.Run(ctx)
	// Output: cortex.yaml: listen: :8080, <nil>
}
