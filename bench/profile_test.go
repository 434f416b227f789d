package main

import (
	"context"
	"os"
	"testing"
)

// BenchmarkProfile runs the contender BENCH_CONTENDER=workload/contender, so that go test can profile it.
func BenchmarkProfile(b *testing.B) {
	s, err := start()
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = s.stop() }()
	for _, w := range workloads(options{runs: 1, events: 100000, history: 100000}, func(sample) {}) {
		for _, c := range w.contenders {
			if w.name+"/"+c.name == os.Getenv("BENCH_CONTENDER") {
				for b.Loop() {
					f, err := runOne(context.Background(), s, c)
					if err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(f, "figure")
				}
			}
		}
	}
}
