package lsp

import (
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/outboxgen/outboxgen/generator"
	"github.com/outboxgen/outboxgen/generator/editor"
)

// file is a document that is open in the editor.
type file struct {
	uri     string
	path    string // "" if it is not on the disk
	text    string
	version int
	editor  editor.File
	doc     *editor.Document // nil if it is not an outbox.yaml
	told    string           // the URI of the lock that has diagnostics from it
}

// outboxName matches the names of files that are taken for an outbox.yaml.
var outboxName = regexp.MustCompile(`(?i)outbox[^/\\]*\.ya?ml$`)

// isLock reports whether a file is a lock.
func isLock(path string) bool { return strings.HasSuffix(path, ".lock.yaml") }

// isOutbox reports whether a document is an outbox.yaml: by its name, or because it names the schema. The client may be
// set up to tell of all YAML files.
func (f *file) isOutbox() bool {
	name := f.uri
	if f.path != "" {
		name = filepath.Base(f.path)
	}
	return !isLock(name) && (outboxName.MatchString(name) || strings.Contains(f.text, "outbox.schema.json"))
}

// source is what findings call f.
func (f *file) source() string {
	if f.path != "" {
		return f.path
	}
	return f.uri
}

// pathOf returns the path of a file URI, "" for any other.
func pathOf(uri string) string {
	u, err := url.Parse(uri)
	if err != nil || u.Scheme != "file" {
		return ""
	}
	path := u.Path
	if regexp.MustCompile(`^/[A-Za-z]:`).MatchString(path) { // of Windows
		path = path[1:]
	}
	if u.Host != "" && u.Host != "localhost" {
		path = "//" + u.Host + path
	}
	return filepath.FromSlash(path)
}

// uriOf returns the URI of a path.
func uriOf(path string) string {
	slashes := filepath.ToSlash(path)
	if !strings.HasPrefix(slashes, "/") {
		slashes = "/" + slashes
	}
	return (&url.URL{Scheme: "file", Path: slashes}).String()
}

// open makes a new document of f, whose text or lock has changed. The caller holds mu.
func (s *server) open(f *file) {
	f.doc = nil
	if !f.isOutbox() {
		return
	}
	o := generator.Options{Source: f.source()}
	if f.path != "" {
		o.Folder = s.Folder(filepath.Dir(f.path))
		o.Lock = s.lockText(generator.LockName(f.path))
	}
	f.doc = f.editor.Open(f.text, o)
	s.check(f)
}

// lockText returns the text of a lock: what the editor has, or the disk. It returns nil if there is none.
func (s *server) lockText(path string) []byte {
	for _, f := range s.files {
		if f.path == path {
			return []byte(f.text)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	return append([]byte{}, text...)
}

// maxVisited is how many files and folders of a module are looked at for generated code.
const maxVisited = 50_000

// goLocations returns where the code that is generated from the YAML at path declares names. The code is next to the
// YAML, or elsewhere in its module.
func goLocations(path, root string, names []string) (found []location) {
	if path == "" || len(names) == 0 {
		return nil
	}
	source := filepath.Base(path)
	entries, _ := os.ReadDir(filepath.Dir(path)) // of a folder that is gone there are none
	for _, entry := range entries {
		found = append(found, inGo(filepath.Join(filepath.Dir(path), entry.Name()), source, names)...)
	}
	if len(found) > 0 || root == "" {
		return found
	}
	visited := 0
	_ = filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		name := entry.Name()
		if visited++; err != nil || visited > maxVisited {
			return fs.SkipAll
		}
		if entry.IsDir() && file != root && (strings.HasPrefix(name, ".") || name == "node_modules" || name == "vendor") {
			return fs.SkipDir
		}
		found = append(found, inGo(file, source, names)...)
		return nil
	})
	return found
}

// inGo returns where a generated file declares names.
func inGo(path, source string, names []string) (found []location) {
	if !strings.HasSuffix(path, editor.GoSuffix) {
		return nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	for _, name := range names {
		if r, ok := editor.FindGo(content, source, name); ok {
			found = append(found, location{uriOf(path), r})
		}
	}
	return found
}
