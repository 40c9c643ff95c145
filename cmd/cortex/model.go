package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed-a29ca62a/cortex/lab/model"
	"github.com/seed-a29ca62a/cortex/lab/plot"
)

func newModel() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "model",
		Short: "Check what is said of retries, breakers and timeouts: formula, numbers, verdict",
		Long: "Works out what the articles on retry storms claim. Each model prints the claim, the formula, the numbers and a verdict that\n" +
			"follows from the inputs; without flags they are the claim's own case.",
		Example: "  cortex model amplification --retries 3 --failure-rate 0.3\n" +
			"  cortex model timeout --lognormal 0.5,1,1.5 --plot timeout.svg\n" +
			"  cortex model threshold --format json",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		newModelAmplification(), newModelJitter(), newModelBackoff(), newModelTimeout(), newModelThreshold(), newModelBreaker(), newModelLittlesLaw(),
		newModelFloor(), newModelCascade(),
	)
	return cmd
}

// modelCommand is a subcommand of cortex model: flags binds the fields of in, run makes the report. Every model also has
// --format and --plot.
func modelCommand[T any](name, short, example string, in T, flags func(*pflag.FlagSet, *T), run func(context.Context, T) (model.Report, error)) *cobra.Command {
	var format, picture string
	cmd := &cobra.Command{
		Use:     name,
		Short:   short,
		Example: example,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkFormat(format, "text", "json"); err != nil {
				return err
			}
			if cmd.Flags().Changed("plot") { // before the work, not after it
				if _, err := plot.FormatOf(picture); err != nil {
					return fmt.Errorf("--plot: %w", err)
				}
			}
			r, err := run(cmd.Context(), in)
			var bad *model.InputError
			if errors.As(err, &bad) {
				return fmt.Errorf("--%s %v: want %s", bad.Input, bad.Value, bad.Want)
			}
			if err != nil && ended(err) {
				return &stopped{fmt.Sprintf("cortex model %s: interrupted before there was anything to show", name)}
			}
			if err != nil {
				return &notSo{err}
			}
			if picture != "" {
				if len(r.Panels) == 0 {
					return fmt.Errorf("--plot: cortex model %s has no picture", name)
				}
				if err := plot.WriteFile(picture, r.Panels...); err != nil {
					return &notSo{fmt.Errorf("--plot: %w", err)}
				}
			}
			if format == "json" {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				enc.SetEscapeHTML(false)
				return enc.Encode(r)
			}
			return r.WriteText(cmd.OutOrStdout())
		},
	}
	flags(cmd.Flags(), &in)
	cmd.Flags().StringVar(&format, "format", "text", "text or json")
	cmd.Flags().StringVar(&picture, "plot", "", "draw it into this file, .svg or .png")
	return cmd
}
