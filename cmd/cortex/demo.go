package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/seed-a29ca62a/cortex/demo"
)

func newDemo() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Show the guard at work beside a plain proxy with retries, in 30 s",
		Long: "Runs an upstream that fails on a timeline behind the gateway, and the same upstream under the same load behind a plain\n" +
			"proxy with three retries: everything in this process, on loopback, nothing to set up.",
		Example: "  cortex demo",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cmd.OutOrStdout()
			if _, err := demo.Run(cmd.Context(), demo.Options{Out: out, Terminal: isTerminal(out)}); err != nil {
				return &notSo{err}
			}
			return nil
		},
	}
}

// isTerminal reports whether w is a character device: colours and redrawing belong there only.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
