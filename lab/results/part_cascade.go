package main

import (
	"fmt"
	"strconv"

	"github.com/seed-a29ca62a/cortex/lab/model"
)

type cascadeData struct {
	Runs    int           `json:"runs"`
	Many    int           `json:"many"` // runs of the product
	Because string        `json:"because"`
	Tables  []model.Table `json:"tables"`
	Product []any         `json:"product"` // its line of many runs
}

func measureCascade(s *study) (any, error) {
	in := model.DefaultCascade()
	in.Runs = s.scale.cascade
	if s.scale.utilisations != nil {
		in.Utilisations = s.scale.utilisations
	}
	r, err := model.Cascade(s.ctx, in)
	if err != nil {
		return nil, err
	}
	in.Runs, in.Policies, in.Utilisations = s.scale.cascadeBudget, []string{product}, nil
	many, err := model.Cascade(s.ctx, in)
	if err != nil {
		return nil, err
	}
	lines := many.Tables[1].Rows
	d := cascadeData{Runs: s.scale.cascade, Many: in.Runs, Because: r.Because, Tables: r.Tables, Product: lines[len(lines)-1]}
	for i, c := range d.Product {
		if f, ok := c.(float64); ok && f != f {
			d.Product[i] = nil
		}
	}
	return d, s.picture("cascade.svg", r.Panels...)
}

func writeCascade(p *page, s *study) error {
	d, err := load[cascadeData](s, "cascade")
	if err != nil {
		return err
	}
	if len(d.Tables) != 4 || len(d.Product) != 7 {
		return fmt.Errorf("%d tables: measure it again", len(d.Tables))
	}
	if _, ok := d.Product[6].(float64); !ok {
		return fmt.Errorf("%v is no bound: measure it again", d.Product[6])
	}
	p.head(2, "How likely is a cascade?")
	p.para("“A breaker takes the chance of a cascade from 20 %% to less than 0.01 %%” is %s", d.Because)
	p.para("A birth–death chain on the attempts in the system, and runs of the simulator with the same target beside it. What the chain gets wrong, and by how much, is in what the command prints.")
	modelTable(p, d.Tables[0])
	modelTable(p, d.Tables[1])
	p.para("%s in %s runs: %s %% collapsed; with 95 %% confidence the chance is below %s %%.", product, thousands(d.Many), cell(d.Product[4]), strconv.FormatFloat(d.Product[6].(float64), 'g', 3, 64))
	modelTable(p, d.Tables[2])
	modelTable(p, d.Tables[3])
	p.command("go run ./cmd/cortex model cascade", fmt.Sprintf("go run ./cmd/cortex model cascade --runs %d --policies %s --utilisations 0.6", d.Many, product))
	p.picture("cascade.svg", "The stationary distribution and the chance of a collapse against the utilisation")
	return nil
}

func modelTable(p *page, t model.Table) {
	head := make([]string, len(t.Columns))
	for i, c := range t.Columns {
		head[i] = c.Name
		if c.Unit != "" {
			head[i] += ", " + c.Unit
		}
	}
	var rows [][]string
	for _, r := range t.Rows {
		line := make([]string, len(r))
		for i, c := range r {
			line[i] = cell(c)
		}
		rows = append(rows, line)
	}
	p.para("%s:", t.Title)
	p.table(head, rows)
}

func cell(v any) string {
	switch v := v.(type) {
	case nil:
		return "–"
	case float64:
		if v > 0 && v < 1e-4 {
			return "< 0.0001"
		}
		return strconv.FormatFloat(v, 'g', 4, 64)
	}
	return fmt.Sprint(v)
}

func thousands(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
