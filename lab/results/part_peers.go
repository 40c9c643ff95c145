package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/seed-a29ca62a/cortex/lab/scenario"
	"github.com/seed-a29ca62a/cortex/lab/suite"
)

type peersData struct {
	Seeds    int       `json:"seeds"`
	Settings []string  `json:"settings"` // lines of a Markdown list
	Rows     []figures `json:"rows"`
}

// measurePeers has the bench module do it, which has the libraries.
func measurePeers(s *study) (any, error) {
	d := peersData{Seeds: s.scale.peerSeeds}
	bench := func(args ...string) ([]byte, error) {
		cmd := exec.CommandContext(s.ctx, "go", append([]string{"run", "./peers"}, args...)...)
		cmd.Dir = filepath.Join(s.root, "bench")
		cmd.Stderr = s.log
		return cmd.Output()
	}
	out, err := bench("-format", "json", "-seeds", fmt.Sprint(d.Seeds))
	if err != nil {
		return nil, fmt.Errorf("go run ./peers: %w", err)
	}
	var rows []suite.Row
	if err := json.Unmarshal(out, &rows); err != nil {
		return nil, fmt.Errorf("go run ./peers: %w", err)
	}
	for _, r := range rows {
		sc, err := scenario.Find(r.Scenario)
		if err != nil {
			return nil, err
		}
		d.Rows = append(d.Rows, figuresOf(r, sc))
	}
	if out, err = bench("-scenario", "S1", "-seeds", "1", "-format", "md", "-settings"); err != nil {
		return nil, fmt.Errorf("go run ./peers -settings: %w", err)
	}
	for line := range bytes.Lines(out) {
		if text := strings.TrimRight(string(line), "\n"); strings.HasPrefix(strings.TrimSpace(text), "- ") {
			d.Settings = append(d.Settings, text)
		}
	}
	return d, nil
}

func writePeers(p *page, s *study) error {
	p.head(2, "Real libraries")
	d, err := load[peersData](s, "peers")
	if err != nil {
		return err
	}
	names, subjects := scenariosOf(d.Rows), policiesOf(d.Rows)
	p.para("The public libraries themselves, not copies of them, on the same arrivals, target and faults, under the virtual clock of `testing/synctest`, with the settings that their documentation "+
		"recommends (below). Their own randomness cannot be seeded: numbers differ from run to run by less than their spread. `%s` here is `cortex.Do` in the same bubble. Goodput in %%, mean of %d seeds.", product, d.Seeds)
	cross := func(f func(*figures) string) {
		var rows [][]string
		for _, sub := range subjects {
			line := []string{bold(sub, sub == product)}
			for _, name := range names {
				x, ok := find(d.Rows, name, sub)
				if !ok {
					line = append(line, "–")
					continue
				}
				line = append(line, f(&x))
			}
			rows = append(rows, line)
		}
		p.table(append([]string{""}, names...), rows)
	}
	best := map[string]float64{}
	for _, f := range d.Rows {
		best[f.Scenario] = max(best[f.Scenario], f.Goodput)
	}
	cross(func(f *figures) string {
		return bold(f.goodput(1), percent(f.Goodput, 1) == percent(best[f.Scenario], 1))
	})
	p.para("Goodput of the highest and of the lowest priority (9 / 2), %%:")
	cross(func(f *figures) string { return percent(f.By[0], 1) + " / " + percent(f.By[len(f.By)-1], 1) })
	p.para("Attempts at the target for each call offered, within the fault:")
	cross(func(f *figures) string { return plain(f.InFault, 3) })
	p.para("Time to recovery in seconds:")
	cross(ttr)
	p.command("cd bench && go run ./peers -settings", "go run ./lab/results --only peers     # writes this chapter")
	p.para("What each was told, and where its documentation says so:")
	p.WriteString("\n" + strings.Join(d.Settings, "\n") + "\n")
	return nil
}
