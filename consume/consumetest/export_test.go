package consumetest

import "testing"

// Names are the names of the checks that Conformance runs.
func Names() []string {
	var names []string
	for _, c := range checks() {
		names = append(names, c.name)
	}
	return names
}

// RunOne runs one check with t.
func RunOne(t testing.TB, name string, h Harness) {
	for _, c := range checks() {
		if c.name == name {
			c.run(newBench(t, h, t.Name()))
		}
	}
}
