package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// A session is one run of the workloads. Its files have, at any time, what has been measured so far.
type session struct {
	options
	all    []workload // also those that are not run
	stdout io.Writer
	log    logf

	rep     report
	earlier *report // what the folder has of the same machine, nil if nothing
}

// run measures the chosen workloads. The error has one line per workload that was not, or not completely, measured.
func (r *session) run(ctx context.Context, chosen []workload, one measure) error {
	if err := r.readEarlier(); err != nil {
		return err
	}
	var failed []error
	var unwritten error
	for _, w := range chosen {
		result, err := runWorkload(ctx, w, r.runs, one, r.log)
		if err != nil {
			return errors.Join(errors.Join(failed...), err, unwritten)
		}
		result.Measured = r.rep.Started
		r.rep.Results = append(r.rep.Results, result)
		fmt.Fprint(r.stdout, result.text())
		if text := result.failure(); text != "" {
			failed = append(failed, errors.New(text))
		}
		if unwritten = r.write(); unwritten != nil {
			r.log("%v", unwritten) // the next workload writes this one too
		}
	}
	return errors.Join(errors.Join(failed...), unwritten)
}

// readEarlier reads the report that this session goes on with. A run of all workloads replaces that of another machine.
func (r *session) readEarlier() error {
	if r.out == "" {
		return nil
	}
	name := filepath.Join(r.out, "benchmarks.json")
	earlier, err := readReport(name)
	if err != nil || earlier == nil {
		return err
	}
	if err := r.rep.comparable(earlier); err == nil {
		r.earlier = earlier
	} else if len(r.only) > 0 {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// write writes the files: what this session has measured, and the earlier results of other workloads.
func (r *session) write() error {
	if r.out == "" {
		return nil
	}
	rep := &r.rep
	if r.earlier != nil {
		rep = rep.with(r.earlier, r.all)
	}
	type file struct {
		name  string
		write func(io.Writer) error
	}
	files := []file{{"benchmarks.json", rep.json}, {"benchmarks.md", rep.markdown}, {"benchmarks.svg", rep.svg}}
	if len(rep.curves()) > 0 {
		files = append(files, file{"benchmarks-curves.svg", rep.svgOfCurves})
	}
	for _, f := range files {
		if err := writeFile(filepath.Join(r.out, f.name), f.write); err != nil {
			return fmt.Errorf("write %s: %w", f.name, err)
		}
	}
	return nil
}

// temporary is the pattern of names of files that are renamed when they are complete.
const temporary = ".benchmarks-*.tmp"

// writeFile replaces a file by one that is complete. A kill leaves the old file or the new one.
func writeFile(name string, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), temporary)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	if err := errors.Join(write(f), f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
