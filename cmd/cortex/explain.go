package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/explain"
)

func newExplain() *cobra.Command {
	in := explain.Defaults()
	var profile, queue, circuit, format string
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "Work out one decision and show every step",
		Long: "Works out what the guard decides on a failed attempt, with the engine's own code: the five signals, the score, the five\n" +
			"checks in their order and the delay. Without flags: the first failure at a healthy target.",
		Example: "  cortex explain --failure-rate 0.5 --p99 400ms --baseline 100ms --queue 30/100 --burn 0.2\n" +
			"  cortex explain --profile article --circuit half-open --priority 4 --format json",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if in.Profile, err = cortex.ParseProfile(profile); err != nil {
				return err
			}
			if in.Queue, in.QueueCapacity, err = parseQueue(queue); err != nil {
				return err
			}
			if in.Circuit, err = parseCircuit(circuit); err != nil {
				return err
			}
			for _, name := range []string{"base-delay", "max-delay"} {
				if d, _ := cmd.Flags().GetDuration(name); cmd.Flags().Changed(name) && d <= 0 {
					return fmt.Errorf("--%s %v: want a duration above 0", name, d)
				}
			}
			if !cmd.Flags().Changed("priority") {
				in.Priority = in.Levels / 2
			}
			if err = checkFormat(format, "text", "json"); err != nil {
				return err
			}
			x, err := explain.Explain(in)
			if err != nil {
				return fmt.Errorf("cortex explain: %w", err)
			}
			if format == "json" {
				enc := json.NewEncoder(cmd.OutOrStdout())
				enc.SetIndent("", "  ")
				return enc.Encode(x)
			}
			return x.WriteText(cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&profile, "profile", "adaptive", "adaptive or article")
	f.Float64Var(&in.FailureRate, "failure-rate", 0, "failures ÷ (failures + successes) in the window, 0 to 1")
	f.DurationVar(&in.P99, "p99", 0, "P99 latency in the window")
	f.DurationVar(&in.Baseline, "baseline", 0, "learned baseline of the latency; 0 = none yet")
	f.StringVar(&queue, "queue", "0/100", "queue as current/capacity")
	f.Float64Var(&in.Burn, "burn", 0, "share of the retry budget spent, 0 to 1")
	f.StringVar(&circuit, "circuit", "closed", "closed, half-open or open")
	f.IntVar(&in.Priority, "priority", in.Priority, "priority of the call, 0 (shed first) to levels")
	f.IntVar(&in.Levels, "levels", in.Levels, "priority levels")
	f.IntVar(&in.Attempt, "attempt", 0, "the attempt that failed; 0 is the original")
	f.IntVar(&in.MaxRetries, "max-retries", in.MaxRetries, "retries after the original attempt")
	f.DurationVar(&in.Backoff.Base, "base-delay", 0, "base of the delay (default 500ms)")
	f.DurationVar(&in.Backoff.Max, "max-delay", 0, "hard ceiling of the delay (default 30s)")
	f.BoolVar(&in.Retryable, "retryable", true, "whether the error is one that a retry can mend")
	f.Float64Var(&in.Tokens, "tokens", in.Tokens, "tokens in the retry budget")
	f.DurationVar(&in.RetryAfter, "retry-after", 0, "the server's hint, a lower bound of the delay")
	f.DurationVar(&in.Deadline, "deadline", 0, "time left until the caller's deadline; 0 = none")
	f.StringVar(&format, "format", "text", "text or json")
	return cmd
}

func parseQueue(s string) (current, capacity float64, err error) {
	a, b, ok := strings.Cut(s, "/")
	if ok {
		var errA, errB error
		current, errA = strconv.ParseFloat(a, 64)
		capacity, errB = strconv.ParseFloat(b, 64)
		ok = errA == nil && errB == nil
	}
	if !ok {
		return 0, 0, fmt.Errorf("--queue %q: write it as current/capacity, such as 30/100", s)
	}
	return current, capacity, nil
}

func parseCircuit(s string) (breaker.State, error) {
	for _, st := range []breaker.State{breaker.Closed, breaker.HalfOpen, breaker.Open} {
		if s == st.String() {
			return st, nil
		}
	}
	return 0, fmt.Errorf("--circuit %q: use closed, half-open or open", s)
}

func checkFormat(got string, known ...string) error {
	for _, k := range known {
		if got == k {
			return nil
		}
	}
	return fmt.Errorf("--format %q: use %s", got, strings.Join(known, " or "))
}
