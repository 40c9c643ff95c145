package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/seed-a29ca62a/cortex/lab/policy"
	"github.com/seed-a29ca62a/cortex/lab/scenario"
)

// check tells whether the document is what its numbers say, and whether the code still gives these numbers: of the suite all that is
// the product's, of the rest a sample.
func (s *study) check() error {
	var problems []error
	for _, f := range []func(*study) error{checkDocument, (*study).sizes, checkSuite, checkPictures, checkSweep, checkMap} {
		if err := f(s); err != nil {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

func checkDocument(s *study) error {
	text, err := s.document()
	if err != nil {
		return err
	}
	name := filepath.Join(s.docs, "results.md")
	have, err := os.ReadFile(name)
	if err == nil && !bytes.Equal(have, text) {
		err = fmt.Errorf("%s is not what its numbers say: go run ./lab/results --render", name)
	}
	return err
}

func stale(what string, have, now any) error {
	return fmt.Errorf("%s: %v in the document, %v now: measure again, go generate ./lab/results", what, have, now)
}

// same compares as it is written.
func same(a, b any) bool {
	x, errX := encode(a)
	y, errY := encode(b)
	return errX == nil && errY == nil && bytes.Equal(x, y)
}

func checkSuite(s *study) error {
	d, err := load[suiteData](s, "suite")
	if err != nil {
		return err
	}
	var problems []error
	compare := func(scenarios []*scenario.Scenario, policies []string) {
		rows, err := s.suiteRows(scenarios, policies)
		if err != nil {
			problems = append(problems, err)
			return
		}
		for _, now := range rows {
			if have, ok := find(d.Rows, now.Scenario, now.Policy); !ok || !same(have, now) {
				problems = append(problems, stale(now.Scenario+" under "+now.Policy+" has other figures; goodput", percent(have.Goodput, 2), percent(now.Goodput, 2)))
			}
		}
	}
	compare(everyScenario(), []string{product})
	one, err := scenario.Find("S1")
	if err != nil {
		return err
	}
	compare([]*scenario.Scenario{one}, article[:3])
	return errors.Join(problems...)
}

func checkPictures(s *study) error {
	for _, x := range articlePictures(s.ctx) {
		panels, err := x.panels()
		if err != nil {
			return err
		}
		now, err := draw(panels...)
		if err != nil {
			return err
		}
		have, err := os.ReadFile(s.file(x.file))
		if err != nil {
			return err
		}
		if !bytes.Equal(have, now) {
			return fmt.Errorf("%s is another picture now: go run ./lab/results --only article", s.file(x.file))
		}
	}
	return nil
}

// checkSweep makes the first draws again.
func checkSweep(s *study) error {
	d, err := load[sweepData](s, "sweep")
	if err != nil {
		return err
	}
	p, err := policy.Find(product)
	if err != nil {
		return err
	}
	all, err := s.sweep([]policy.Policy{p}, min(6, d.Draws), false)
	if err != nil {
		return err
	}
	for i, now := range efficiencies(all) {
		if i >= len(d.Product) || !same(d.Product[i], now) {
			return stale(fmt.Sprintf("draw %d of the sweep, efficiency of %s", i, product), d.Product[min(i, len(d.Product)-1)], rounded(now))
		}
	}
	return nil
}

// checkMap draws the map from its numbers.
func checkMap(s *study) error {
	d, err := load[mapData](s, "map")
	if err != nil {
		return err
	}
	have, err := os.ReadFile(s.file("map.svg"))
	if err != nil {
		return err
	}
	if !bytes.Equal(have, d.multiples()) {
		return fmt.Errorf("%s is not what its numbers say: go run ./lab/results --only map", s.file("map.svg"))
	}
	return nil
}
