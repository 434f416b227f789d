package generator

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/outboxgen/outboxgen/generator/emit"
)

// Kind is what Write does to a file.
type Kind string

// The kinds of change.
const (
	Create    Kind = "create"
	Update    Kind = "update"
	Remove    Kind = "remove"    // a generated file that no topic or namespace needs
	Unchanged Kind = "unchanged" // the bytes are equal: Write does not change it
)

// Change is what happens to one file.
type Change struct {
	Name string // relative to the folder, with slashes
	Kind Kind
	Old  []byte // nil for Create
	New  []byte // nil for Remove

	mode fs.FileMode
}

// Changes are the changes that make a folder equal to what Generate returned, sorted by name.
type Changes struct {
	Dir   string
	Files []Change

	writeTo func(f *os.File, content []byte) (int, error) // nil except in tests that simulate a full disk
}

// ConflictError says that files which outboxgen did not generate have the names of generated files. Nothing has been
// written.
type ConflictError struct {
	Paths []string
}

// Error has one line per file.
func (e *ConflictError) Error() string {
	lines := make([]string, len(e.Paths))
	for i, name := range e.Paths {
		lines[i] = name + ": a file that outboxgen did not generate is in the way: move it, or choose another output folder"
	}
	return strings.Join(lines, "\n")
}

// Plan compares files with the folder dir. Stubs whose code already exists are left out. A generated file that no topic
// needs any more is removed if it has our header and comes from the same YAML. The error is a *ConflictError, a
// *FolderError, or says that dir cannot be read. Plan does not create dir.
func Plan(dir string, files []File) (*Changes, error) {
	root, err := openFolder(dir, consumerNames(files)...)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	entries, err := root.ReadDir(".")
	if err != nil {
		return nil, fmt.Errorf("read output folder %s: %w", dir, cause(err))
	}
	if files, err = withoutWrittenStubs(dir, root, entries, files); err != nil {
		return nil, err
	}
	c := &Changes{Dir: dir}
	var conflict ConflictError
	for _, f := range files {
		change, ok, err := compare(root, f)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", filepath.Join(dir, f.Name), cause(err))
		}
		if !ok {
			conflict.Paths = append(conflict.Paths, filepath.Join(dir, f.Name))
			continue
		}
		c.Files = append(c.Files, change)
	}
	if len(conflict.Paths) > 0 {
		return nil, &conflict
	}
	if err := c.checkFolders(root, files); err != nil {
		return nil, err
	}
	if err := c.addStale(root, entries, files); err != nil {
		return nil, err
	}
	if err := c.addStaleConsumers(root, entries, files); err != nil {
		return nil, err
	}
	slices.SortFunc(c.Files, func(a, b Change) int { return strings.Compare(a.Name, b.Name) })
	return c, nil
}

// cause removes the operation and path from err, because the message already names them.
func cause(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	var link *os.LinkError
	if errors.As(err, &link) {
		return link.Err
	}
	return err
}

// compare returns the change that f needs; ok is false when the existing file is not ours.
func compare(root *output, f File) (change Change, ok bool, err error) {
	info, err := root.Lstat(f.Name)
	if errors.Is(err, fs.ErrNotExist) {
		return Change{Name: f.Name, Kind: Create, New: f.Content, mode: 0o644}, true, nil
	}
	if err != nil || !info.Mode().IsRegular() {
		return Change{}, false, err
	}
	old, err := root.ReadFile(f.Name)
	if err != nil || !emit.IsGenerated(old) {
		return Change{}, false, err
	}
	change = Change{Name: f.Name, Kind: Update, Old: old, New: f.Content, mode: info.Mode().Perm()}
	if bytes.Equal(unixLines(old), f.Content) { // a checkout on Windows may have changed the line ends
		change.Kind = Unchanged
	}
	return change, true, nil
}

func unixLines(text []byte) []byte { return bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n")) }

// addStale adds the removal of generated files that are not among files.
func (c *Changes) addStale(root *output, entries []fs.DirEntry, files []File) error {
	wanted, source := wantedOf(files)
	for _, entry := range entries {
		name := entry.Name()
		if wanted[name] || !strings.HasSuffix(name, emit.Suffix) || !entry.Type().IsRegular() {
			continue
		}
		content, err := root.ReadFile(name)
		if err != nil {
			return fmt.Errorf("read %s: %w", filepath.Join(c.Dir, name), cause(err))
		}
		from := emit.SourceOf(content)
		if !emit.IsGenerated(content) || from != "" && from != source {
			continue
		}
		c.Files = append(c.Files, Change{Name: name, Kind: Remove, Old: content, mode: 0o644})
	}
	return nil
}

// wantedOf returns the names of files and the YAML that they come from.
func wantedOf(files []File) (wanted map[string]bool, source string) {
	wanted = make(map[string]bool, len(files))
	for _, f := range files {
		wanted[f.Name] = true
		if f.Stub == nil {
			source = emit.SourceOf(f.Content)
		}
	}
	return wanted, source
}

// consumerFolder matches the default names of the sub-folder of a consumer package.
var consumerFolder = regexp.MustCompile(`^[a-z][a-z0-9_]{0,40}$`)

// addStaleConsumers adds the removal of files of present and former consumer packages that are not among files. It
// looks in the sub-folders of the output folder, and in the folder of the present consumer package. Another outbox.yaml
// may have its output in a sub-folder, so only files whose header names a consumer package of this YAML are removed.
func (c *Changes) addStaleConsumers(root *output, entries []fs.DirEntry, files []File) error {
	wanted, source := wantedOf(files)
	var folders []string
	for _, f := range files {
		if folder := path.Dir(f.Name); folder != "." && !slices.Contains(folders, folder) {
			folders = append(folders, folder)
		}
	}
	for _, entry := range entries {
		if entry.IsDir() && consumerFolder.MatchString(entry.Name()) && !slices.Contains(folders, entry.Name()) {
			folders = append(folders, entry.Name())
		}
	}
	for _, folder := range folders {
		inner, err := root.ReadDir(folder)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it does not exist yet
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", filepath.Join(c.Dir, folder), cause(err))
		}
		for _, entry := range inner {
			name := path.Join(folder, entry.Name())
			if wanted[name] || !strings.HasSuffix(name, emit.Suffix) || !entry.Type().IsRegular() {
				continue
			}
			content, err := root.ReadFile(name)
			if err != nil {
				return fmt.Errorf("read %s: %w", filepath.Join(c.Dir, name), cause(err))
			}
			if emit.IsGenerated(content) && emit.IsConsumer(content) && emit.SourceOf(content) == source {
				c.Files = append(c.Files, Change{Name: name, Kind: Remove, Old: content, mode: 0o644})
			}
		}
	}
	return nil
}

// Pending returns the changes that Write would make, sorted by name; none when the folder is up to date.
func (c *Changes) Pending() []Change {
	var pending []Change
	for _, change := range c.Files {
		if change.Kind != Unchanged {
			pending = append(pending, change)
		}
	}
	return pending
}

// noFile stands for a file that does not exist, in a diff, also on Windows.
const noFile = "/dev/null"

// Diff renders the pending changes as a unified diff, "" when there are none.
func (c *Changes) Diff() string {
	var b strings.Builder
	for _, change := range c.Pending() {
		old, current := filepath.ToSlash(filepath.Join(c.Dir, change.Name)), ""
		current = old
		switch change.Kind {
		case Create:
			old = noFile
		case Remove:
			current = noFile
		}
		b.Write(diff.Diff(old, unixLines(change.Old), current, unixLines(change.New)))
	}
	return b.String()
}
