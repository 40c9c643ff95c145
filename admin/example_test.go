package admin_test

import (
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"strings"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/admin"
)

// A program that has engines of its own can have the admin port, too.
func ExampleNew() {
	engine, err := cortex.New(cortex.Config{Name: "payments"})
	if err != nil {
		fmt.Println(err)
		return
	}
	var level slog.LevelVar
	withoutTime := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
	port := admin.New(admin.Config{
		Targets: func() []admin.Target { return []admin.Target{{Name: "payments", Engine: engine}} },
		Ready:   func() bool { return true },
		Token:   func() string { return "correct-horse-battery-staple" },
		Log:     slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{Level: &level, ReplaceAttr: withoutTime})),
		Control: admin.Control{Level: level.Level, SetLevel: level.Set},
	})

	r := httptest.NewRequest("POST", "/api/v1/targets/payments/circuit", strings.NewReader(`{"state":"open"}`))
	r.Header.Set("Authorization", "Bearer correct-horse-battery-staple")
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	port.ServeHTTP(w, r)
	fmt.Println(w.Code, engine.Pressure().Circuit)
	// Output:
	// level=INFO msg="admin: operation" remote=192.0.2.1:1234 method=POST path=/api/v1/targets/payments/circuit operation=circuit target=payments before=auto after=open status=200 result=done
	// 200 open
}
