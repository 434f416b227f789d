package generator

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/outboxgen/outboxgen/generator/spec"
)

// Format returns source, an outbox.yaml, in its canonical layout. Findings call it name. The error is a diag.List if
// source cannot be read.
func Format(source []byte, name string) ([]byte, error) { return spec.Format(source, name) }

// PlanFormat returns the change that replaces the content of a file, source, by formatted, if they differ. A symbolic
// link is followed, and stays.
func PlanFormat(file string, source, formatted []byte) (*Changes, error) {
	target, err := filepath.EvalSymlinks(file)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, cause(err))
	}
	info, err := os.Stat(target)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, cause(err))
	}
	c := FormatChange(filepath.Base(target), source, formatted)
	c.Dir, c.Files[0].mode = filepath.Dir(target), info.Mode().Perm()
	return c, nil
}

// FormatChange is PlanFormat for text that is not in a file. It can be shown and not written.
func FormatChange(name string, source, formatted []byte) *Changes {
	change := Change{Name: name, Kind: Update, Old: source, New: formatted}
	if bytes.Equal(source, formatted) {
		change.Kind = Unchanged
	}
	return &Changes{Files: []Change{change}}
}
