package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/seed-a29ca62a/cortex/config"
	"github.com/seed-a29ca62a/cortex/gateway"
	"github.com/seed-a29ca62a/cortex/systemd"
	"github.com/seed-a29ca62a/cortex/watch"
)

func newServe() *cobra.Command {
	var path, upstream, listen, admin, decisions string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the gateway, or the decision service",
		Long: "Runs the gateway in front of the targets of a configuration file, or of one upstream without a file, and the decision service\n" +
			"for programs that make their calls themselves, beside it or alone. SIGTERM and Ctrl-C\n" +
			"drain it: readiness turns 503 first, requests in flight end, then it stops. The second one stops it at once.",
		Example: "  cortex serve --config cortex.yaml\n" +
			"  cortex serve --upstream http://127.0.0.1:9000 --listen 127.0.0.1:8080 --admin 127.0.0.1:9095\n" +
			"  cortex serve --decisions 127.0.0.1:9096",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			read := func() (*config.File, error) { return load(cmd, path, upstream, listen, admin, decisions) }
			follow := newFollower(path)
			f, err := read()
			if err != nil {
				return err
			}
			tuneCollector()
			level := new(slog.LevelVar)
			level.Set(f.Log.Level)
			s, err := gateway.Listen(f, gateway.Options{Logger: logger(cmd.ErrOrStderr(), f.Log.Format, level), Level: level, Load: follow.reading(read)})
			if err != nil {
				return &notSo{err}
			}
			if err := follow.run(cmd.Context(), s); err != nil {
				return &notSo{err}
			}
			return nil
		},
	}
	fl := cmd.Flags()
	fl.StringVarP(&path, "config", "c", "", "the configuration file")
	fl.StringVar(&upstream, "upstream", "", "guard this one URL, without a file")
	fl.StringVar(&listen, "listen", "", "with --upstream: where clients reach the gateway (default 127.0.0.1:8080)")
	fl.StringVar(&admin, "admin", "", "with --upstream or --decisions: the admin port (default 127.0.0.1:9095)")
	fl.StringVar(&decisions, "decisions", "", "answer for programs that make their calls themselves, here, such as 127.0.0.1:9096, without a file")
	return cmd
}

// A follower has a server read its configuration anew: on SIGHUP, and when the file changes or one that it names. It follows every
// reload, those that are asked for on the admin port too.
type follower struct {
	path    string // of the configuration; empty = there is none
	watcher *watch.Watcher
	server  *gateway.Server
	systemd *systemd.Notifier
}

// newFollower is to be called before the file is read, so that what changes after that is a change.
func newFollower(path string) *follower {
	f := &follower{path: path, systemd: systemd.FromEnvironment()}
	f.watcher = watch.New(func([]string) { f.server.Reload() }) // an error stands in the log
	if path != "" {
		f.watcher.Watch(time.Hour, path) // how often it says itself
	}
	return f
}

// look watches what the configuration in force names.
func (f *follower) look() {
	if every, paths := f.server.Watched(); f.path != "" {
		f.watcher.Watch(every, append(paths, f.path)...)
	}
}

// reading is a reload's reading of the configuration: what changes after it has begun is a change.
func (f *follower) reading(read func() (*config.File, error)) func() (*config.File, error) {
	return func() (*config.File, error) {
		f.systemd.Reloading()
		if every, paths := f.server.Watched(); f.path != "" {
			if every == 0 {
				every = time.Hour // the file may say that it is to be watched
			}
			f.watcher.Watch(every, append(paths, f.path)...)
			f.watcher.Note()
		}
		return read()
	}
}

// reloaded is told of the end of a reload.
func (f *follower) reloaded(err error) {
	status := listening(f.server)
	if err != nil { // which stands in the log
		status += "; the last reload failed, the configuration before it is in force"
	}
	f.look()
	f.systemd.Ready(status)
}

// listening is where clients reach the server.
func listening(s *gateway.Server) string {
	a := s.Addr()
	if a == nil { // the decision service alone
		a = s.DecisionsAddr()
	}
	return "listening on " + a.String()
}

// run runs the server until ctx ends.
func (f *follower) run(ctx context.Context, s *gateway.Server) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan struct{})
	defer close(ended)
	f.server = s
	s.OnReload(f.reloaded)
	f.look()
	go f.watcher.Run(ctx)
	hangUp := make(chan os.Signal, 1)
	signal.Notify(hangUp, syscall.SIGHUP)
	defer signal.Stop(hangUp)
	again := make(chan os.Signal, 2)
	signal.Notify(again, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(again)
	go func() {
		for stops := 0; ; {
			select {
			case <-hangUp:
				if ctx.Err() == nil {
					s.Reload() // an error stands in the log
				}
			case <-again:
				if stops++; stops == 2 { // the first ended the context; a drain that the admin port asked for is none
					s.Hurry()
				}
			case <-ended:
				return
			}
		}
	}()
	go f.systemd.Watchdog(ctx, nil)
	s.OnDrain(func() { f.systemd.Stopping("draining") })
	f.systemd.Ready(listening(s))
	return s.Run(ctx)
}

func load(cmd *cobra.Command, path, upstream, listen, admin, decisions string) (*config.File, error) {
	switch {
	case path != "" && upstream != "":
		return nil, errors.New("cortex serve: --config and --upstream exclude each other: put the upstream into the file")
	case path != "":
		for _, name := range []string{"listen", "admin", "decisions"} {
			if cmd.Flags().Changed(name) {
				return nil, errors.New("cortex serve: --" + name + " goes with --upstream; with --config set it in the file")
			}
		}
		return config.Load(path)
	case upstream == "" && cmd.Flags().Changed("listen"):
		return nil, errors.New("cortex serve: --listen goes with --upstream: there is nothing to listen for")
	case upstream != "" || decisions != "":
		return config.Flags(upstream, listen, admin, decisions)
	}
	return nil, errors.New("cortex serve: what is to be guarded? Use --config FILE, --upstream URL or --decisions HOST:PORT")
}

func logger(w io.Writer, format string, level slog.Leveler) *slog.Logger {
	o := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
