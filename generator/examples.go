package generator

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/outboxgen/outboxgen/generator/lock"
	"github.com/outboxgen/outboxgen/generator/sample"
)

// ExamplesName returns the path of the examples of a YAML file: events/testdata/outbox.frozen.json for
// events/outbox.yaml.
func ExamplesName(source string) string {
	base := strings.TrimSuffix(filepath.Base(source), filepath.Ext(source))
	return filepath.Join(filepath.Dir(source), "testdata", base+".frozen.json")
}

// ExamplesError says that the file of examples is not one.
type ExamplesError struct{ err error }

func (e *ExamplesError) Error() string { return e.err.Error() }
func (e *ExamplesError) Unwrap() error { return e.err }

// withExamples returns the file of examples of l: for each version, what have holds, followed by the examples that it
// lacks. So a payload that was once an example of a version stays one.
func withExamples(l *lock.Lock, have []byte) ([]byte, error) {
	kept := make(map[string]map[string][]json.RawMessage)
	if have != nil {
		if err := json.Unmarshal(have, &kept); err != nil {
			return nil, &ExamplesError{fmt.Errorf("not a file of examples: %w", err)}
		}
	}
	var out bytes.Buffer
	out.WriteString("{")
	for i, t := range l.Topics {
		if i > 0 {
			out.WriteString(",")
		}
		fmt.Fprintf(&out, "\n  %q: {", t.Name)
		for j, f := range t.Versions {
			if j > 0 {
				out.WriteString(",")
			}
			fmt.Fprintf(&out, "\n    \"%d\": [", f.Version)
			have := slices.Concat(kept[t.Name][strconv.Itoa(f.Version)], kept[t.Was][strconv.Itoa(f.Version)])
			for k, payload := range union(have, sample.Payloads(f.Topic.Fields)) {
				if k > 0 {
					out.WriteString(",")
				}
				fmt.Fprintf(&out, "\n      %s", payload)
			}
			out.WriteString("\n    ]")
		}
		out.WriteString("\n  }")
	}
	out.WriteString("\n}\n")
	return out.Bytes(), nil
}

// union returns the compact payloads of have, followed by those of more that are not among them.
func union(have, more []json.RawMessage) []string {
	var all []string
	seen := make(map[string]bool)
	for _, payloads := range [][]json.RawMessage{have, more} {
		for _, payload := range payloads {
			var b bytes.Buffer
			if json.Compact(&b, payload) != nil || seen[b.String()] {
				continue
			}
			seen[b.String()] = true
			all = append(all, b.String())
		}
	}
	return all
}
