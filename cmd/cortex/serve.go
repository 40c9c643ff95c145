package main

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/seed-a29ca62a/cortex/config"
	"github.com/seed-a29ca62a/cortex/gateway"
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
			f, err := load(cmd, path, upstream, listen, admin)
			if err != nil {
				return err
			}
			tuneCollector()
			s, err := gateway.Listen(f, gateway.Options{Logger: logger(cmd.ErrOrStderr(), f.Log)})
			if err != nil {
				return &notSo{err}
			}
			if err := s.Run(cmd.Context()); err != nil {
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

func logger(w io.Writer, c config.Log) *slog.Logger {
	o := &slog.HandlerOptions{Level: c.Level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
