package main

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/modfile"
	modpath "golang.org/x/mod/module"
	modzip "golang.org/x/mod/zip"
)

// maxZip is the size of a module's zip, in bytes, above which the packing fails: everybody who uses it downloads it.
const maxZip = 5_000_000

// packed is one module as users get it.
type packed struct {
	module, version string
	size            int64 // of the zip, in bytes
	files           int
}

// pack writes the files of a module proxy for a module at a commit: list, info, mod and zip. It fails if users could
// not use them.
func pack(ctx context.Context, repo git, m module, version, commit, proxy string) (packed, error) {
	p := packed{module: m.path, version: version}
	escaped, err := modpath.EscapePath(m.path)
	if err != nil {
		return p, err
	}
	dir := filepath.Join(proxy, filepath.FromSlash(escaped), "@v")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return p, err
	}
	text, err := repo.run(ctx, "", "show", commit+":"+strings.TrimPrefix(m.dir+"/go.mod", "./"))
	if err != nil {
		return p, err
	}
	mod, err := modfile.Parse("go.mod", []byte(text), nil)
	if err != nil {
		return p, err
	}
	if err := checkRequirements(mod, version); err != nil {
		return p, err
	}
	var b bytes.Buffer
	v := modpath.Version{Path: m.path, Version: version}
	if err := modzip.CreateFromVCS(&b, v, repo.dir, commit, strings.TrimPrefix(m.dir, ".")); err != nil {
		return p, err
	}
	if p.size = int64(b.Len()); p.size > maxZip {
		return p, fmt.Errorf(
			"%s: the zip has %d bytes, more than %d: move what users do not compile into a module of its own",
			m.path, p.size, maxZip)
	}
	if p.files, err = checkFiles(ctx, repo, m, commit, b.Bytes(), v); err != nil {
		return p, err
	}
	at, err := repo.line(ctx, "show", "--no-patch", "--format=%cI", commit+"^{commit}")
	if err != nil {
		return p, err
	}
	t, err := time.Parse(time.RFC3339, at)
	if err != nil {
		return p, err
	}
	info, err := json.Marshal(struct {
		Version string
		Time    time.Time
	}{version, t.UTC()})
	if err != nil {
		return p, err
	}
	for name, content := range map[string][]byte{
		"list": []byte(version + "\n"), version + ".info": info, version + ".mod": []byte(text), version + ".zip": b.Bytes(),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return p, err
		}
	}
	return p, nil
}

// checkFiles returns an error if a zip lacks a file that the commit has in the module, or a licence.
func checkFiles(
	ctx context.Context, repo git, m module, commit string, content []byte, v modpath.Version,
) (int, error) {
	r, err := zip.NewReader(bytes.NewReader(content), int64(len(content)))
	if err != nil {
		return 0, err
	}
	have := make(map[string]bool)
	for _, f := range r.File {
		have[strings.TrimPrefix(f.Name, v.Path+"@"+v.Version+"/")] = true
	}
	files, err := repo.lines(ctx, "-c", "core.quotePath=off", "ls-tree", "-r", "--name-only", commit, m.dir+"/")
	if err != nil {
		return 0, err
	}
	prefix := strings.TrimPrefix(m.dir+"/", "./")
	var nested []string // folders of other modules
	for _, file := range files {
		if dir, ok := strings.CutSuffix(strings.TrimPrefix(file, prefix), "/go.mod"); ok {
			nested = append(nested, dir+"/")
		}
	}
	want := []string{"LICENSE"}
	for _, file := range files {
		name := strings.TrimPrefix(file, prefix)
		if !slices.ContainsFunc(nested, func(dir string) bool { return strings.HasPrefix(name, dir) }) {
			want = append(want, name)
		}
	}
	var missing []string
	for _, name := range want {
		if !have[name] {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return 0, fmt.Errorf("%s: the zip lacks %s", m.path, few(missing))
	}
	return len(have), nil
}
