package scenario

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/seed-a29ca62a/cortex/strictyaml"
	"go.yaml.in/yaml/v3"
)

// Bounds of what is read.
const (
	MaxFile      = 1 << 20  // bytes of a scenario file
	MaxTraceFile = 10 << 20 // bytes of a trace
	MaxSteps     = 1000     // of arrivals; what has more is a trace
	MaxFaults    = 500
)

// Load reads a file that holds one scenario; see [Parse].
func Load(path string) (*Scenario, error) {
	all, err := LoadAll(path)
	if err != nil {
		return nil, err
	}
	return only(all, path)
}

// LoadAll reads a file with any number of scenarios, divided by lines of ---, as printing several of them makes.
func LoadAll(path string) ([]*Scenario, error) {
	data, err := readFile(path, MaxFile)
	if err != nil {
		return nil, err
	}
	return parseAll(data, path)
}

// Parse reads one scenario and validates it. A trace that it names is read from the directory of file, whose name is otherwise for
// messages only. What is wrong comes as [strictyaml.Errors], with line, column and key: a key that is not known or is given twice, a
// value of another type, a key of another kind of fault, a value out of range. The YAML has no aliases, merge keys or tags.
//
// Missing keys are the defaults of [Scenario], and: client.timeout adaptive, client.max_retries 3.
func Parse(data []byte, file string) (*Scenario, error) {
	all, err := parseAll(data, file)
	if err != nil {
		return nil, err
	}
	return only(all, file)
}

func only(all []*Scenario, file string) (*Scenario, error) {
	if len(all) > 1 {
		return nil, strictyaml.Errors{{File: file, Line: 1, Column: 1, Message: fmt.Sprintf("%d scenarios: want one", len(all))}}
	}
	return all[0], nil
}

func parseAll(data []byte, file string) ([]*Scenario, error) {
	var all []*Scenario
	d := &decoder{strictyaml.Decoder{File: file}}
	for _, doc := range d.documents(data) {
		d.Places = nil
		if s := d.scenario(doc); s != nil {
			all = append(all, s)
		}
	}
	if len(d.Problems) > 0 {
		return nil, d.Errors()
	}
	return all, nil
}

// readFile reads a regular file of at most so many bytes. Anything else (a pipe, a device) could have no end.
func readFile(path string, most int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &os.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = &os.PathError{Op: "read", Path: path, Err: fmt.Errorf("larger than %d MiB", most>>20)}
	}
	return data, err
}

type place = strictyaml.Place

// A decoder fills scenarios.
type decoder struct{ strictyaml.Decoder }

// documents returns the roots of what data holds, or nothing with problems reported.
func (d *decoder) documents(data []byte) []*yaml.Node {
	whole := place{Line: 1, Column: 1}
	if len(data) > MaxFile {
		d.Problem(whole, "the file is larger than %d MiB", MaxFile>>20)
		return nil
	}
	var roots []*yaml.Node
	for doc := range d.Documents(data) {
		root := doc.Content[0]
		if strictyaml.IsNull(root) {
			continue
		}
		if !d.Form(root) {
			break
		}
		roots = append(roots, root)
	}
	if len(d.Problems) > 0 {
		return nil
	}
	if len(roots) == 0 {
		d.Problem(whole, "the file is empty: `cortex sim --scenario S1 --print` shows what belongs into it")
	}
	return roots
}
