package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/outboxgen/outboxgen/generator"
)

// generation measures the generator, from YAML to formatted Go in memory.
func generation() workload {
	w := workload{
		name: "generator", title: "generator", unit: "ms", lessIsBetter: true,
		about: "Topics of five fields in namespaces of 50; the YAML of 10,000 is close to the limit of 1 MiB.",
		targets: []target{
			{of: "1,000 topics", atMost: 1000},
			{of: "1,000 topics", to: "100 topics", atMost: 15},
			{of: "10,000 topics", to: "1,000 topics", atMost: 12},
		},
	}
	for _, n := range [...]int{100, 1000, 10000} {
		source := largeYAML(n)
		name := fmt.Sprintf("%d topics", n)
		if n >= 1000 {
			name = fmt.Sprintf("%d,000 topics", n/1000)
		}
		w.contenders = append(w.contenders, contender{name, func(context.Context, *database) (float64, error) {
			started := time.Now()
			_, err := generator.Generate(source, generator.Options{})
			return float64(time.Since(started)) / float64(time.Millisecond), err
		}})
	}
	return w
}

func largeYAML(topics int) []byte {
	var b strings.Builder
	b.WriteString("version: \"1\"\npackage: events\nnamespaces:\n")
	for n := range topics {
		if n%50 == 0 {
			fmt.Fprintf(&b, " n%d:\n  topics:\n", n/50)
		}
		fmt.Fprintf(&b, "   t%d: {delivery: queue, payload: {a: uuid, b: int64, c: string, d: bool, e: date}}\n", n)
	}
	return []byte(b.String())
}
