package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/outboxgen/outboxgen/generator"
)

// compileTime and compileMemory measure what the Go compiler takes for a generated package.
func compileTime() workload {
	return workload{
		name: "compile", title: "compiling generated code", unit: "s of processor time", lessIsBetter: true,
		about: "A package of topics with five fields, in namespaces of 50, is built once, with its imports built before. " +
			"Nothing to compile: the build of a package that has not changed.",
		contenders: []contender{
			{"1,000 topics", compileSeconds(1000)},
			{"10 topics", compileSeconds(10)},
			{"nothing to compile", compileSeconds(1)},
		},
		targets: []target{
			{of: "1,000 topics", atMost: 10},
			{of: "10 topics", to: "nothing to compile", atMost: 0.3, difference: true},
		},
	}
}

func compileSeconds(topics int) func(context.Context, *database) (float64, error) {
	return func(ctx context.Context, _ *database) (float64, error) {
		used, err := compile(ctx, topics)
		return used.seconds, err
	}
}

func compileMemory() workload {
	return workload{
		name: "compile memory", title: "compiling generated code, memory", unit: "MiB", lessIsBetter: true,
		about: "The same package: the largest resident set of the compiler.",
		contenders: []contender{{"1,000 topics", func(ctx context.Context, _ *database) (float64, error) {
			used, err := compile(ctx, 1000)
			return used.mebibytes, err
		}}},
		targets: []target{{of: "1,000 topics", atMost: 520}},
	}
}

type compilation struct{ seconds, mebibytes float64 }

// compile generates a package of topics inside this module, whose imports are known, and builds it.
func compile(ctx context.Context, topics int) (used compilation, err error) {
	dir, err := os.MkdirTemp(".", "compiled")
	if err != nil {
		return used, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	build := func() (*exec.Cmd, error) {
		cmd := exec.CommandContext(ctx, "go", "build", "./"+dir)
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%w\n%s", err, out)
		}
		return cmd, nil
	}
	for _, n := range [...]int{1, topics} { // the first builds the imports
		if err := generateInto(dir, n); err != nil {
			return used, err
		}
		cmd, err := build()
		if err != nil {
			return used, err
		}
		usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
		if !ok {
			return used, errors.New("this system does not tell what a process has used")
		}
		used.seconds = (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
		used.mebibytes = float64(usage.Maxrss) / 1024
	}
	return used, nil
}

// generateInto writes a generated package of topics into a folder.
func generateInto(dir string, topics int) error {
	files, err := generator.Generate(largeYAML(topics), generator.Options{})
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(dir, f.Name), f.Content, 0o600); err != nil {
			return err
		}
	}
	return nil
}
