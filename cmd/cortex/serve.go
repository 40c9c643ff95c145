package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/seed-a29ca62a/cortex/config"
	"github.com/seed-a29ca62a/cortex/gateway"
	"github.com/seed-a29ca62a/cortex/systemd"
	"github.com/seed-a29ca62a/cortex/watch"
)

func newServe() *cobra.Command {
	var path, upstream, listen, admin string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the gateway",
		Long: "Runs the gateway in front of the targets of a configuration file, or of one upstream without a file. SIGTERM and Ctrl-C\n" +
			"drain it: readiness turns 503 first, requests in flight end, then it stops.",
		Example: "  cortex serve --config cortex.yaml\n" +
			"  cortex serve --upstream http://127.0.0.1:9000 --listen 127.0.0.1:8080 --admin 127.0.0.1:9095",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			read := func() (*config.File, error) { return load(cmd, path, upstream, listen, admin) }
			f, err := read()
			if err != nil {
				return err
			}
			tuneCollector()
			level := new(slog.LevelVar)
			level.Set(f.Log.Level)
			s, err := gateway.Listen(f, gateway.Options{Logger: logger(cmd.ErrOrStderr(), f.Log.Format, level), Level: level, Load: read})
			if err != nil {
				return &notSo{err}
			}
			if err := serve(cmd.Context(), s, path); err != nil {
				return &notSo{err}
			}
			return nil
		},
	}
	fl := cmd.Flags()
	fl.StringVarP(&path, "config", "c", "", "the configuration file")
	fl.StringVar(&upstream, "upstream", "", "guard this one URL, without a file")
	fl.StringVar(&listen, "listen", "", "with --upstream: where clients reach the gateway (default 127.0.0.1:8080)")
	fl.StringVar(&admin, "admin", "", "with --upstream: the admin port (default 127.0.0.1:9095)")
	return cmd
}

// serve runs a server, and what makes it read its configuration anew: SIGHUP, and a change of the file or of one that it names.
func serve(ctx context.Context, s *gateway.Server, path string) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	systemd := systemd.FromEnvironment()
	var reload func()
	watcher := watch.New(func([]string) { reload() })
	look := func() {
		every, paths := s.Watched()
		if path != "" {
			watcher.Watch(every, append(paths, path)...)
		}
	}
	reload = func() {
		systemd.Reloading()
		s.Reload() // which says in the log what became of it
		look()
		systemd.Ready("")
	}
	look()
	go watcher.Run(ctx)
	hangUp := make(chan os.Signal, 1)
	signal.Notify(hangUp, syscall.SIGHUP)
	defer signal.Stop(hangUp)
	go func() {
		for {
			select {
			case <-hangUp:
				reload()
			case <-ctx.Done():
				return
			}
		}
	}()
	go systemd.Watchdog(ctx, nil)
	s.OnDrain(func() { systemd.Stopping("draining") })
	systemd.Ready("listening on " + s.Addr().String())
	return s.Run(ctx)
}

// tuneCollector lets the heap grow to five times what is live, unless GOGC says otherwise: a gateway keeps a few megabytes and
// makes garbage with every request, so the collector would run many times a second, for more than the guard itself costs.
func tuneCollector() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
}

func load(cmd *cobra.Command, path, upstream, listen, admin string) (*config.File, error) {
	switch {
	case path != "" && upstream != "":
		return nil, errors.New("cortex serve: --config and --upstream exclude each other: put the upstream into the file")
	case path != "":
		for _, name := range []string{"listen", "admin"} {
			if cmd.Flags().Changed(name) {
				return nil, errors.New("cortex serve: --" + name + " goes with --upstream; with --config set it in the file")
			}
		}
		return config.Load(path)
	case upstream != "":
		return config.Upstream(upstream, listen, admin)
	}
	return nil, errors.New("cortex serve: what is to be guarded? Use --config FILE or --upstream URL")
}

func logger(w io.Writer, format string, level slog.Leveler) *slog.Logger {
	o := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
