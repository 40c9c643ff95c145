// Command cortex guards calls to downstream services against retry storms. Each subcommand is a thin shell over a package.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed-a29ca62a/cortex/strictyaml"
)

// Exit codes.
const (
	exitDone  = 0 // done
	exitNotSo = 1 // the thing asked about is not so, or it failed while running
	exitUsage = 2 // wrong usage or configuration

	exitInterrupted = 130 // a signal ended it before it was done
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run executes a command line and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	var failed *notSo
	if errors.As(err, &failed) {
		if failed.err != nil {
			fmt.Fprintln(stderr, failed.err)
		}
		return exitNotSo
	}
	fmt.Fprintln(stderr, err)
	if cut := new(stopped); errors.As(err, &cut) {
		return exitInterrupted
	}
	return exitUsage
}

// notSo is an error that is an answer, not a mistake in the question.
type notSo struct{ err error }

func (n *notSo) Error() string { return fmt.Sprint(n.err) }
func (n *notSo) Unwrap() error { return n.err }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "cortex",
		Short:         "A guard against retry storms",
		Long:          "CORTEX stands in front of a service and keeps a failing one from being stormed, while what matters most still gets through.",
		Example:       "  cortex demo\n  cortex serve --upstream http://127.0.0.1:9000\n  cortex explain --failure-rate 0.5 --queue 80/100",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetFlagErrorFunc(flagError)
	root.AddCommand(newServe(), newValidate(), newExplain(), newDemo(), newSim(), newModel(), newVersion())
	return root
}

// flagError says of a flag that cannot be used what would be right.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		var known []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
		if near := strictyaml.Nearest(unknown.GetSpecifiedName(), known); near != "" {
			return fmt.Errorf("%w: did you mean --%s?", err, near)
		}
		return fmt.Errorf("%w: `%s --help` shows them", err, cmd.CommandPath())
	}
	return err
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  cortex version",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "cortex", version())
			return err
		},
	}
}

// version is the module's version as built in, with the revision where there is one.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	if v == "" {
		v = "(devel)"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			v += " " + s.Value
		}
	}
	return v + " " + info.GoVersion
}
