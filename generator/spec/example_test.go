package spec_test

import (
	"fmt"

	"github.com/outboxgen/outboxgen/generator/spec"
)

func ExampleDecode() {
	s, findings := spec.Decode([]byte("version: \"1\"\npackage: events\nnamespace: {}\n"), "outbox.yaml")
	fmt.Println(s.Package.V, s.Package.Pos)
	fmt.Println(findings)
	// Output:
	// events outbox.yaml:2:10
	// outbox.yaml:3:1: unknown key "namespace" at the top level (did you mean "namespaces"?) [unknown-key]
}
