package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/seed-a29ca62a/cortex/config"
	"github.com/seed-a29ca62a/cortex/gateway"
)

func newValidate() *cobra.Command {
	var path string
	var effective bool
	cmd := &cobra.Command{
		Use:   "validate",
		Short: "Check a configuration and show what is in force",
		Long: "Checks a configuration file and reports every problem at once, with line and column. With --effective it prints the\n" +
			"whole configuration, every default filled in.",
		Example: "  cortex validate --config cortex.yaml\n  cortex validate --config cortex.yaml --effective",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := config.Load(path)
			if err != nil {
				return err
			}
			if err := gateway.Check(f); err != nil {
				return err
			}
			if !effective {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: ok, %s\n", path, summary(f))
				return err
			}
			text, err := f.Effective()
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	cmd.Flags().StringVarP(&path, "config", "c", "", "the configuration file")
	cmd.Flags().BoolVar(&effective, "effective", false, "print the whole configuration with every default")
	must(cmd.MarkFlagRequired("config"))
	return cmd
}

// summary is what a configuration makes, in a line.
func summary(f *config.File) string {
	s := fmt.Sprintf("%d targets, %d routes", len(f.Targets), len(f.Routes))
	if d := f.Decisions; d != nil {
		s += ", decisions on " + d.Listen
	}
	if c := f.Cluster; c != nil {
		s += ", cluster by " + c.Redis.URL
	}
	return s
}

// must stops on what can only be a mistake in this program.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
