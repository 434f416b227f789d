package generator

import (
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/outboxgen/outboxgen/generator/emit"
)

// output is an open output folder. Names in it are relative to the output folder. The names of a consumer package
// elsewhere start with "../", so the open root is the folder that holds all of them. No name or symbolic link leads out
// of the root.
type output struct {
	root *os.Root
	sub  string // the output folder in root, "." without such names
}

// openFolder opens the output folder dir, together with the folders that names lead to.
func openFolder(dir string, names ...string) (*output, error) {
	up := 0
	for _, name := range names {
		up = max(up, strings.Count(name, "../"))
	}
	base, sub := dir, "."
	if up > 0 {
		full, err := filepath.Abs(dir)
		if err != nil {
			return nil, fmt.Errorf("open output folder %s: %w", dir, cause(err))
		}
		base = filepath.Join(full, strings.Repeat("../", up))
		if sub, err = filepath.Rel(base, full); err != nil {
			return nil, fmt.Errorf("open output folder %s: %w", dir, err)
		}
	}
	root, err := os.OpenRoot(base)
	if err != nil {
		return nil, fmt.Errorf("open output folder %s: %w", dir, cause(err))
	}
	return &output{root, filepath.ToSlash(sub)}, nil
}

// consumerNames returns the names of the files of a consumer package. Only these may be outside the output folder.
func consumerNames(files []File) []string {
	var names []string
	for _, f := range files {
		if emit.IsConsumer(f.Content) {
			names = append(names, f.Name)
		}
	}
	return names
}

// at returns name relative to root.
func (o *output) at(name string) string { return path.Join(o.sub, name) }

func (o *output) Close() error { return o.root.Close() }

func (o *output) ReadDir(name string) ([]fs.DirEntry, error) {
	return fs.ReadDir(o.root.FS(), o.at(name))
}

func (o *output) ReadFile(name string) ([]byte, error)      { return o.root.ReadFile(o.at(name)) }
func (o *output) Lstat(name string) (fs.FileInfo, error)    { return o.root.Lstat(o.at(name)) }
func (o *output) Open(name string) (*os.File, error)        { return o.root.Open(o.at(name)) }
func (o *output) Mkdir(name string, mode fs.FileMode) error { return o.root.Mkdir(o.at(name), mode) }
func (o *output) Remove(name string) error                  { return o.root.Remove(o.at(name)) }
func (o *output) Rename(from, to string) error              { return o.root.Rename(o.at(from), o.at(to)) }
func (o *output) Link(from, to string) error                { return o.root.Link(o.at(from), o.at(to)) }

func (o *output) OpenFile(name string, flag int, mode fs.FileMode) (*os.File, error) {
	return o.root.OpenFile(o.at(name), flag, mode)
}
