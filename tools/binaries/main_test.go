package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var committed = time.Date(2026, 11, 21, 13, 14, 15, 0, time.UTC)

// checkoutOf makes a git repository with the files of this checkout in a new folder, with one commit, the same each
// time.
func checkoutOf(t *testing.T, tags ...string) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	dir := filepath.Join(t.TempDir(), "outboxgen")
	all := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "-co", "--exclude-standard", "-z")
	list, err := all.Output()
	require.NoError(t, err)
	for name := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		content, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) {
			continue // deleted, and not yet committed
		}
		require.NoError(t, err)
		target := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(target), 0o755))
		require.NoError(t, os.WriteFile(target, content, 0o644))
	}
	git(t, dir, "init", "-q")
	git(t, dir, "add", "-A")
	git(t, dir, "commit", "-q", "-m", "test")
	for _, tag := range tags {
		git(t, dir, "tag", tag)
	}
	return dir
}

func git(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"-C", dir}, args...)...)
	at := committed.Format(time.RFC3339)
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_NOSYSTEM=1",
		"GIT_AUTHOR_NAME=test", "GIT_AUTHOR_EMAIL=test@example.com",
		"GIT_COMMITTER_NAME=test", "GIT_COMMITTER_EMAIL=test@example.com", "GIT_AUTHOR_DATE="+at, "GIT_COMMITTER_DATE="+at)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
}

// TestSameBytesInEachFolder builds a tagged commit in two folders. All files are the same to the byte, are complete,
// and the program tells the tag. With OUTBOXGEN_TEST_CAMPAIGN it builds for all platforms, and the second time
// without the cache of the first.
func TestSameBytesInEachFolder(t *testing.T) {
	platforms := []string{"linux/amd64", "windows/amd64"}
	campaign := os.Getenv("OUTBOXGEN_TEST_CAMPAIGN") != ""
	if campaign {
		platforms = strings.Split(everywhere, ",")
	} else if testing.Short() {
		t.Skip("slow: left out by -short")
	}
	t.Setenv("SOURCE_DATE_EPOCH", "")
	out := [2]string{t.TempDir(), t.TempDir()}
	for i, dir := range out {
		if campaign && i == 1 {
			t.Setenv("GOCACHE", t.TempDir())
		}
		require.NoError(t, run(checkoutOf(t, "v0.9.0", "v0.10.0", "publish/kafka/v0.11.0", "vnext"), dir, "", platforms))
	}
	first, second := content(t, out[0]), content(t, out[1])
	require.Len(t, first, 2*len(platforms)+1)
	for name, bytes := range first {
		require.True(t, string(bytes) == string(second[name]), "%s differs", name)
	}

	sums := strings.Split(strings.TrimSuffix(string(first["checksums.txt"]), "\n"), "\n")
	require.Len(t, sums, len(first)-1)
	for _, line := range sums {
		sum, name, ok := strings.Cut(line, "  ")
		require.True(t, ok, line)
		require.Equal(t, fmt.Sprintf("%x", sha256.Sum256(first[name])), sum, name)
	}

	for _, platform := range platforms {
		goos, goarch, _ := strings.Cut(platform, "/")
		name, program := "outboxgen_0.10.0_"+goos+"_"+goarch, "outboxgen"
		var entries []entry
		if goos == "windows" {
			program, entries = "outboxgen.exe", unzip(t, first[name+".zip"])
		} else {
			entries = untar(t, first[name+".tar.gz"])
		}
		var names []string
		for _, e := range entries {
			names = append(names, e.name)
			require.NotEmpty(t, e.content, e.name)
			require.Equal(t, e.name == program, e.mode == 0o755, e.name)
		}
		require.Equal(t, []string{program, "CHANGELOG.md", "LICENSE", "README.md", "completions/_outboxgen",
			"completions/outboxgen.bash", "completions/outboxgen.fish", "completions/outboxgen.ps1"}, names)
		requireBuild(t, entries[0].content, goos, goarch)
		requireSBOM(t, first[name+".cdx.json"], entries[0].content, goos, goarch)
		if goos == runtime.GOOS && goarch == runtime.GOARCH {
			path := filepath.Join(t.TempDir(), program)
			require.NoError(t, os.WriteFile(path, entries[0].content, 0o755))
			head, err := exec.CommandContext(t.Context(), path, "version").Output()
			require.NoError(t, err)
			require.Regexp(t, `^outboxgen v0\.10\.0 \(commit [0-9a-f]{12} of 2026-11-21T13:14:15Z\) `+
				runtime.Version()+" "+platform+`\n$`, string(head))
		}
	}
}

func content(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	files := make(map[string][]byte)
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, f := range list {
		files[f.Name()], err = os.ReadFile(filepath.Join(dir, f.Name()))
		require.NoError(t, err)
	}
	return files
}

// requireBuild checks what the linker recorded. A program without a dynamic loader needs no library of the system.
func requireBuild(t *testing.T, program []byte, goos, goarch string) {
	t.Helper()
	info, err := buildinfo.Read(bytes.NewReader(program))
	require.NoError(t, err)
	settings := make(map[string]string)
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	for key, want := range map[string]string{
		"GOOS": goos, "GOARCH": goarch, "CGO_ENABLED": "0", "-trimpath": "true", "vcs": "",
	} {
		require.Equal(t, want, settings[key], key)
	}
	require.False(t, goos == "linux" && bytes.Contains(program, []byte("/ld-linux")), "the program is not static")
}

func requireSBOM(t *testing.T, text, program []byte, goos, goarch string) {
	t.Helper()
	var bom struct {
		BOMFormat, SpecVersion, SerialNumber string
		Metadata                             struct {
			Timestamp  string
			Component  struct{ Name, Version, PURL string }
			Properties []struct{ Name, Value string }
		}
		Components []struct{ Name, Version string }
	}
	require.NoError(t, json.Unmarshal(text, &bom))
	require.Equal(t, "CycloneDX 1.6", bom.BOMFormat+" "+bom.SpecVersion)
	require.Empty(t, bom.SerialNumber+bom.Metadata.Timestamp)
	require.False(t, bytes.Contains(text, []byte("goos=")), "the SBOM names the platform that builds")
	main := bom.Metadata.Component
	require.Equal(t, "github.com/outboxgen/outboxgen v0.10.0", main.Name+" "+main.Version)
	properties := make(map[string]string)
	for _, p := range bom.Metadata.Properties {
		properties[strings.TrimPrefix(p.Name, "cdx:gomod:")] = p.Value
	}
	require.Equal(t, goos+"/"+goarch, properties["build:env:GOOS"]+"/"+properties["build:env:GOARCH"])
	require.Equal(t, fmt.Sprintf("%x", sha256.Sum256(program)), properties["binary:hash:SHA-256"])
	var modules []string
	for _, c := range bom.Components {
		modules = append(modules, c.Name)
	}
	require.Contains(t, modules, "github.com/jackc/pgx/v5")
	require.Contains(t, modules, "std")
	require.NotContains(t, modules, "github.com/stretchr/testify", "it is in no program")
}

func untar(t *testing.T, packed []byte) (entries []entry) {
	t.Helper()
	zr, err := gzip.NewReader(bytes.NewReader(packed))
	require.NoError(t, err)
	for tr := tar.NewReader(zr); ; {
		header, err := tr.Next()
		if err == io.EOF {
			return entries
		}
		require.NoError(t, err)
		require.Equal(t, committed, header.ModTime.UTC())
		require.Zero(t, header.Uid+header.Gid)
		text, err := io.ReadAll(tr)
		require.NoError(t, err)
		entries = append(entries, entry{header.Name, fs.FileMode(header.Mode), text})
	}
}

func unzip(t *testing.T, packed []byte) (entries []entry) {
	t.Helper()
	zr, err := zip.NewReader(bytes.NewReader(packed), int64(len(packed)))
	require.NoError(t, err)
	for _, f := range zr.File {
		require.Equal(t, committed, f.Modified.UTC())
		r, err := f.Open()
		require.NoError(t, err)
		text, err := io.ReadAll(r)
		require.NoError(t, err)
		entries = append(entries, entry{f.Name, f.Mode(), text})
	}
	return entries
}

// TestVersionOfASource: a tag of a clean checkout, a given version, a commit, a changed checkout, and a folder
// without git.
func TestVersionOfASource(t *testing.T) {
	repository := func(tags ...string) string {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), []byte("1"), 0o644))
		git(t, dir, "init", "-q")
		git(t, dir, "add", "-A")
		git(t, dir, "commit", "-q", "-m", "test")
		for _, tag := range tags {
			git(t, dir, "tag", tag)
		}
		return dir
	}
	const at = "2026-11-21T13:14:15Z"
	changed := repository("v0.1.0")
	require.NoError(t, os.WriteFile(filepath.Join(changed, "file"), []byte("2"), 0o644))
	folder := repository()
	inner := filepath.Join(folder, "inner")
	require.NoError(t, os.Mkdir(inner, 0o755))
	for _, c := range []struct{ name, root, version, epoch, want, wrong string }{
		{name: "tag", root: repository("v0.1.0"), want: `0\.1\.0: v0\.1\.0 [0-9a-f]{40} ` + at},
		{name: "highest tag", root: repository("v0.9.0", "v0.10.0", "vnext"), want: `0\.10\.0: v0\.10\.0 .*`},
		{name: "version", root: repository(), version: "v0.2.0-rc.1", want: `0\.2\.0-rc\.1: v0\.2\.0-rc\.1 .* ` + at},
		{name: "commit", root: repository(), want: `0\.0\.0-20261121131415-[0-9a-f]{12}: \(devel\) [0-9a-f]{40} ` + at},
		{name: "changed", root: changed, want: `0\.0\.0-20261121131415-.{12}-modified: \(devel\) .* ` + at + ` modified`},
		{name: "changed version", root: changed, version: "v0.1.0", want: `0\.1\.0-modified: v0\.1\.0 .* modified`},
		{name: "no git", root: inner, version: "v0.1.0", epoch: "1763730855", want: `0\.1\.0: v0\.1\.0`},
		{name: "no version", root: inner, epoch: "1763730855", wrong: "give VERSION"},
		{name: "no time", root: inner, version: "v0.1.0", wrong: "set SOURCE_DATE_EPOCH"},
		{name: "wrong version", root: repository(), version: "0.1", wrong: `"0.1" is not a version`},
		{name: "wrong time", root: repository(), epoch: "today", wrong: `SOURCE_DATE_EPOCH: "today" is not a number`},
	} {
		t.Setenv("SOURCE_DATE_EPOCH", c.epoch)
		s, err := inspect(c.root, c.version)
		if c.wrong != "" {
			require.ErrorContains(t, err, c.wrong, c.name)
			continue
		}
		require.NoError(t, err, c.name)
		require.Regexp(t, "^"+c.want+"$", s.name+": "+s.stamp, c.name)
	}
}

// TestNothingIsOverwritten: files of another version never stay next to new ones.
func TestNothingIsOverwritten(t *testing.T) {
	t.Setenv("SOURCE_DATE_EPOCH", "1763730855")
	out := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(out, "outboxgen_0.0.9_linux_amd64.tar.gz"), nil, 0o644))
	require.ErrorContains(t, run(t.TempDir(), out, "v0.1.0", nil), "is not empty")
}
