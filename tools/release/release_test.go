package main

import (
	"archive/zip"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// guards is a file of the constants that generated code refers to.
const guards = "package p\n\nconst (\n\tIsAtLeastVersion0_1_0 = true\n)\n"

// fixture returns a repository with the root, a public module that needs it, and a module of tests that needs both.
func fixture(t *testing.T) git {
	t.Helper()
	repo := git{dir: t.TempDir()}
	module := func(dir, more string) string {
		return "module " + rootPath + dir + "\n\ngo 1.26.0\n" + more
	}
	const root = "\nrequire " + rootPath + " v0.0.0\n"
	for name, text := range map[string]string{
		"go.mod":               module("", ""),
		"LICENSE":              "MIT\n",
		"CHANGELOG.md":         "# Changelog\n\n## [0.1.0] - not yet released\n\n- Everything.\n",
		"Makefile":             "test:\n\t@echo tested > tested.txt && rm tested.txt\nfails:\n\t@false\n",
		"outbox/version.go":    strings.Replace(guards, "package p", "package outbox", 1),
		"outbox/outbox.go":     "package outbox\n\nfunc Enqueue(id int) error { return nil }\n",
		"outbox/events.sql":    "SELECT 1;\n",
		"consume/version.go":   strings.Replace(guards, "package p", "package consume", 1),
		"consume/kafka/go.mod": module("/consume/kafka", root+"\nreplace "+rootPath+" => ../..\n"),
		"consume/kafka/kafka.go": "package kafka\n\nimport \"" + rootPath + "/outbox\"\n\n" +
			"func Run(id int) error { return outbox.Enqueue(id) }\n",
		"consume/kafkatest/go.mod": module("/consume/kafkatest", root+"\nrequire "+rootPath+"/consume/kafka v0.0.0\n\nreplace (\n\t"+
			rootPath+" => ../..\n\t"+rootPath+"/consume/kafka => ../kafka\n)\n"),
		"consume/kafkatest/kafka_test.go": "package kafkatest\n\nimport _ \"" + rootPath + "/consume/kafka\"\n",
	} {
		write(t, repo, name, text)
	}
	must(t, repo, "init", "--quiet", "--initial-branch=main")
	must(t, repo, "config", "user.name", "a maintainer")
	must(t, repo, "config", "user.email", "maintainer@example.com")
	commit(t, repo)
	return repo
}

func write(t *testing.T, repo git, name, text string) {
	t.Helper()
	path := filepath.Join(repo.dir, filepath.FromSlash(name))
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

func replace(t *testing.T, repo git, name, old, text string) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(repo.dir, name))
	require.NoError(t, err)
	require.Contains(t, string(content), old)
	write(t, repo, name, strings.Replace(string(content), old, text, 1))
}

func must(t *testing.T, repo git, args ...string) string {
	t.Helper()
	out, err := repo.line(t.Context(), args...)
	require.NoError(t, err)
	return out
}

func commit(t *testing.T, repo git) {
	t.Helper()
	must(t, repo, "add", "--all")
	must(t, repo, "commit", "--quiet", "--allow-empty", "--message", "a change")
}

// tagged is the fixture after the release of v0.1.0, with an entry for the next one.
func tagged(t *testing.T) git {
	t.Helper()
	repo := fixture(t)
	require.NoError(t, releaseOf(t, repo, "v0.1.0").run(t.Context()))
	replace(t, repo, "CHANGELOG.md", "## [0.1.0]", "## [Unreleased]\n\n- More.\n\n## [0.1.0]")
	commit(t, repo)
	return repo
}

func releaseOf(t *testing.T, repo git, version string) *release {
	t.Helper()
	return &release{repo: repo, version: version, now: time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC), log: t.Output()}
}

// TestRelease: one commit with the version in every go.mod, in the changelog and as a constant, and a tag per public module.
func TestRelease(t *testing.T) {
	t.Parallel()
	repo := tagged(t)
	head := must(t, repo, "rev-parse", "HEAD")
	r := releaseOf(t, repo, "v0.2.0")
	r.checks = []string{"test"}
	require.NoError(t, r.run(t.Context()))

	require.Equal(t, head, must(t, repo, "rev-parse", "HEAD^"), "one commit")
	require.Equal(t, "Release v0.2.0", must(t, repo, "log", "-1", "--format=%s"))
	require.Equal(t, "main", must(t, repo, "branch", "--show-current"))
	require.Empty(t, must(t, repo, "status", "--porcelain"), "the files are those of the commit")
	require.Equal(t, "consume/kafka/v0.1.0\nconsume/kafka/v0.2.0\nv0.1.0\nv0.2.0", must(t, repo, "tag", "--list"))
	for _, tag := range r.tags() {
		require.Equal(t, "tag", must(t, repo, "cat-file", "-t", tag), "annotated")
		require.Equal(t, must(t, repo, "rev-parse", "HEAD"), must(t, repo, "rev-parse", tag+"^{commit}"))
	}
	for _, dir := range []string{"consume/kafka", "consume/kafkatest"} {
		mod := must(t, repo, "show", "v0.2.0:"+dir+"/go.mod")
		require.Contains(t, mod, rootPath+" v0.2.0")
		require.NotContains(t, mod, "v0.1.0")
		require.Contains(t, mod, rootPath+" => ../..", "the repository still builds by itself")
	}
	require.Contains(t, must(t, repo, "show", "v0.2.0:consume/kafkatest/go.mod"), rootPath+"/consume/kafka v0.2.0")
	require.Contains(t, must(t, repo, "show", "v0.2.0:CHANGELOG.md"), "## [0.2.0] - 2027-01-02\n\n- More.\n\n## [0.1.0] - 2027-01-02\n")
	for _, name := range []string{"outbox", "consume"} {
		require.Equal(t, "package "+name+"\n\nconst (\n\tIsAtLeastVersion0_1_0 = true\n\tIsAtLeastVersion0_2_0 = true\n)",
			must(t, repo, "show", "v0.2.0:"+name+"/version.go"))
	}
	require.Equal(t, "git push --atomic origin main v0.2.0 consume/kafka/v0.2.0", r.pushCommand())
	require.Len(t, strings.Split(must(t, repo, "worktree", "list"), "\n"), 1, "nothing is left behind")
}

// TestReleaseIsRefused: each reason is one line that says what to do, and leaves no commit, no tag and no changed file.
func TestReleaseIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		version string
		checks  []string
		prepare func(t *testing.T, repo git)
		want    string
	}{
		"no version":   {version: "", want: "no version is given: make release VERSION=v0.1.0"},
		"no v":         {version: "0.2.0", want: "it is not a version such as v0.1.0"},
		"short":        {version: "v1", want: "it is not a version such as v0.1.0"},
		"candidate":    {version: "v0.2.0-rc.1", want: "it is not a version such as v0.1.0"},
		"second major": {version: "v2.0.0", want: "from v2 on, each module path must end in /v2: change the paths first"},
		"tagged":       {version: "v0.1.0", want: "the tag v0.1.0 exists: choose a higher version"},
		"a module is tagged": {version: "v0.2.0", want: "the tag consume/kafka/v0.2.0 exists: choose a higher version",
			prepare: func(t *testing.T, repo git) { must(t, repo, "tag", "consume/kafka/v0.2.0") }},
		"lower": {version: "v0.0.9", want: "it is not higher than v0.1.0, the latest release"},
		"changed file": {version: "v0.2.0", want: "some files are changed or new, commit or remove them:  M LICENSE",
			prepare: func(t *testing.T, repo git) { write(t, repo, "LICENSE", "another") }},
		"new file": {version: "v0.2.0", want: "some files are changed or new, commit or remove them: ?? outbox/new.go",
			prepare: func(t *testing.T, repo git) { write(t, repo, "outbox/new.go", "package outbox\n") }},
		"no branch": {version: "v0.2.0", want: "no branch is checked out: git switch to the branch of the release",
			prepare: func(t *testing.T, repo git) { must(t, repo, "switch", "--quiet", "--detach") }},
		"no section": {version: "v0.2.0", want: "CHANGELOG.md has no entry for it: its first section is [0.1.0] - 2027-01-02; " +
			"write ## [Unreleased] above it, and below that what users will notice",
			prepare: func(t *testing.T, repo git) {
				replace(t, repo, "CHANGELOG.md", "## [Unreleased]\n\n- More.\n\n", "")
				commit(t, repo)
			}},
		"no entry": {version: "v0.2.0", want: "CHANGELOG.md has no entry for it: write into [Unreleased] what users will notice, as a list",
			prepare: func(t *testing.T, repo git) {
				replace(t, repo, "CHANGELOG.md", "- More.\n", "")
				commit(t, repo)
			}},
		"broken API in a patch": {version: "v0.1.1", want: rootPath + " breaks the API of v0.1.0, which needs a higher minor version: " +
			"./outbox.Enqueue: changed from func(int) error to func(string) error",
			prepare: func(t *testing.T, repo git) {
				replace(t, repo, "outbox/outbox.go", "id int", "id string")
				replace(t, repo, "consume/kafka/kafka.go", "Enqueue(id)", `Enqueue("")`)
				commit(t, repo)
			}},
		"broken API of a module": {version: "v0.1.1", want: rootPath + "/consume/kafka breaks the API of v0.1.0, which needs a higher minor version: ",
			prepare: func(t *testing.T, repo git) {
				replace(t, repo, "consume/kafka/kafka.go", "func Run", "func Start")
				commit(t, repo)
			}},
		"a module is gone": {version: "v0.1.1", want: rootPath + "/consume/kafka is gone, which needs a higher minor version",
			prepare: func(t *testing.T, repo git) {
				must(t, repo, "rm", "--quiet", "-r", "consume/kafka", "consume/kafkatest")
				commit(t, repo)
			}},
		"checks fail": {version: "v0.2.0", checks: []string{"test", "fails"},
			want: "make test fails: exit status 2: nothing was committed or tagged"},
		"a go.mod that does not hold together": {version: "v0.2.0", want: "go list in consume/kafkatest: ",
			prepare: func(t *testing.T, repo git) {
				replace(t, repo, "consume/kafkatest/go.mod", "\t"+rootPath+"/consume/kafka => ../kafka\n", "\t"+rootPath+"/consume/kafka => ../gone\n")
				commit(t, repo)
			}},
		"a version.go of another form": {version: "v0.2.0", want: "consume/version.go: it has no constants in parentheses",
			prepare: func(t *testing.T, repo git) {
				write(t, repo, "consume/version.go", "package consume\n")
				commit(t, repo)
			}},
		// The last step: v0.2.0 can be created, and consume/kafka/v0.2.0 cannot.
		"a tag cannot be created": {version: "v0.2.0", want: "git update-ref: ",
			prepare: func(t *testing.T, repo git) { must(t, repo, "tag", "consume/kafka/v0.2.0/x") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			repo := tagged(t)
			if c.prepare != nil {
				c.prepare(t, repo)
			}
			state := func() [4]string {
				return [4]string{must(t, repo, "rev-parse", "HEAD"), must(t, repo, "tag", "--list"),
					must(t, repo, "status", "--porcelain"), must(t, repo, "worktree", "list")}
			}
			before := state()
			r := releaseOf(t, repo, c.version)
			r.checks = c.checks
			err := r.run(t.Context())
			require.ErrorContains(t, err, c.want)
			require.Equal(t, before, state())
		})
	}
}

// TestBranchMovesMeanwhile: a commit that comes while the release is made is not lost, and nothing is tagged.
func TestBranchMovesMeanwhile(t *testing.T) {
	t.Parallel()
	repo := tagged(t)
	r := releaseOf(t, repo, "v0.2.0")
	var err error
	r.modules, err = modulesOf(t.Context(), repo)
	require.NoError(t, err)
	r.branch = "refs/heads/main"
	require.NoError(t, r.worktree(t.Context(), "HEAD", func(tree git) error {
		made, err := r.commit(t.Context(), tree)
		require.NoError(t, err)
		write(t, repo, "outbox/new.go", "package outbox\n")
		commit(t, repo)
		require.ErrorContains(t, r.publish(t.Context(), made), "git update-ref: ")
		return nil
	}))
	require.Equal(t, "a change", must(t, repo, "log", "-1", "--format=%s"))
	require.FileExists(t, filepath.Join(repo.dir, "outbox", "new.go"))
	require.Equal(t, "consume/kafka/v0.1.0\nv0.1.0", must(t, repo, "tag", "--list"))
}

// TestVersionsThatMayChangeTheAPI: what semantic versioning allows, before and after v1.
func TestVersionsThatMayChangeTheAPI(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from, to        string
		breaks, extends bool
	}{
		{"v0.1.0", "v0.1.1", false, true},
		{"v0.1.0", "v0.2.0", true, true},
		{"v0.9.0", "v1.0.0", true, true},
		{"v1.0.0", "v1.0.1", false, false},
		{"v1.0.0", "v1.1.0", false, true},
		{"v1.9.0", "v2.0.0", true, true},
	} {
		require.Equal(t, c.breaks, breaks(c.from, c.to), "%s to %s", c.from, c.to)
		require.Equal(t, c.extends, extends(c.from, c.to), "%s to %s", c.from, c.to)
	}
}

// TestChangesOfTheAPIThatAreAllowed: before v1 a patch may add, and a minor version may remove.
func TestChangesOfTheAPIThatAreAllowed(t *testing.T) {
	t.Parallel()
	repo := tagged(t)
	replace(t, repo, "outbox/outbox.go", "func Enqueue", "func Another() {}\n\nfunc Enqueue")
	commit(t, repo)
	require.NoError(t, releaseOf(t, repo, "v0.1.1").run(t.Context()))
	replace(t, repo, "outbox/outbox.go", "func Another() {}\n\n", "")
	replace(t, repo, "CHANGELOG.md", "## [0.1.1]", "## [Unreleased]\n\n- Less.\n\n## [0.1.1]")
	commit(t, repo)
	require.NoError(t, releaseOf(t, repo, "v0.2.0").run(t.Context()))
}

// TestPromises: docs/change/upgrading.md has every package that users can import, and says of the same ones that they may change.
func TestPromises(t *testing.T) {
	t.Parallel()
	repo := git{dir: "../.."}
	text, err := os.ReadFile("../../docs/change/upgrading.md")
	require.NoError(t, err)
	promised, free := "", ""
	for line := range strings.Lines(string(text)) {
		switch {
		case strings.Contains(line, "may change in any version"):
			free += line
		case strings.HasPrefix(line, "| "):
			promised += line
		}
	}
	for _, dir := range mayChange {
		require.Contains(t, free, "`"+dir+"`")
	}
	modules, err := modulesOf(t.Context(), repo)
	require.NoError(t, err)
	found := 0
	for _, m := range modules {
		if !m.public {
			continue
		}
		list := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Name}} {{.ImportPath}}", "./...")
		list.Dir = filepath.Join(repo.dir, m.dir)
		out, err := list.Output()
		require.NoError(t, err)
		for line := range strings.Lines(string(out)) {
			name, path, _ := strings.Cut(strings.TrimSpace(line), " ")
			if name != "main" && isPromised(path) {
				found++
				require.Contains(t, promised, "`"+strings.TrimPrefix(path, rootPath+"/")+"`", "say in docs/change/upgrading.md what is promised")
			}
		}
	}
	require.Greater(t, found, 20)
}

// TestRehearse: what users would get, of the commit that is checked out, without a change of the repository.
func TestRehearse(t *testing.T) {
	t.Parallel()
	repo, dir := tagged(t), filepath.Join(t.TempDir(), "rehearsal")
	write(t, repo, "outbox/new.go", "package outbox\n")
	head := must(t, repo, "rev-parse", "HEAD")
	for range 2 { // into an empty folder, and over the rehearsal before
		list, err := rehearse(t.Context(), repo, dir, t.Output())
		require.NoError(t, err)
		require.Len(t, list, 2)
		require.Equal(t, rootPath, list[0].module)
		require.Equal(t, rootPath+"/consume/kafka", list[1].module)
		require.Equal(t, "v0.2.0", list[1].version)
	}
	require.Equal(t, head, must(t, repo, "rev-parse", "HEAD"))
	require.Equal(t, "consume/kafka/v0.1.0\nv0.1.0", must(t, repo, "tag", "--list"))

	at := filepath.Join(dir, "proxy", filepath.FromSlash(rootPath), "@v")
	for name, want := range map[string]string{
		"list": "v0.2.0\n", "v0.2.0.mod": "module " + rootPath + "\n\ngo 1.26.0\n",
	} {
		text, err := os.ReadFile(filepath.Join(at, name))
		require.NoError(t, err)
		require.Equal(t, want, string(text))
	}
	z, err := zip.OpenReader(filepath.Join(at, "v0.2.0.zip"))
	require.NoError(t, err)
	defer z.Close()
	var names []string
	for _, f := range z.File {
		names = append(names, strings.TrimPrefix(f.Name, rootPath+"@v0.2.0/"))
	}
	require.ElementsMatch(t, []string{"CHANGELOG.md", "LICENSE", "Makefile", "consume/version.go", "go.mod", "outbox/events.sql",
		"outbox/outbox.go", "outbox/version.go"}, names, "not the other modules, and not what is not committed")
	z, err = zip.OpenReader(filepath.Join(dir, "proxy", filepath.FromSlash(rootPath), "consume", "kafka", "@v", "v0.2.0.zip"))
	require.NoError(t, err)
	defer z.Close()
	require.Len(t, z.File, 3, "with the licence of the root")
}

// TestRehearseAfterARelease: nothing has changed since, and the rehearsal still works.
func TestRehearseAfterARelease(t *testing.T) {
	t.Parallel()
	repo := fixture(t)
	list, err := rehearse(t.Context(), repo, filepath.Join(t.TempDir(), "rehearsal"), t.Output())
	require.NoError(t, err)
	require.Equal(t, "v0.1.0", list[0].version)
	require.NoError(t, releaseOf(t, repo, "v0.1.0").run(t.Context()))
	list, err = rehearse(t.Context(), repo, filepath.Join(t.TempDir(), "rehearsal"), t.Output())
	require.NoError(t, err)
	require.Equal(t, "v0.2.0", list[0].version)
}

// TestRehearseFails on what users could not use.
func TestRehearseFails(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare func(t *testing.T, repo git)
		want    string
	}{
		"a file that git archive leaves out": {want: rootPath + ": the zip lacks outbox/events.sql",
			prepare: func(t *testing.T, repo git) { write(t, repo, ".gitattributes", "*.sql export-ignore\n") }},
		"a symbolic link": {want: rootPath + ": the zip lacks schema",
			prepare: func(t *testing.T, repo git) {
				require.NoError(t, os.Symlink("outbox", filepath.Join(repo.dir, "schema")))
			}},
		"no licence": {want: rootPath + ": the zip lacks LICENSE",
			prepare: func(t *testing.T, repo git) { require.NoError(t, os.Remove(filepath.Join(repo.dir, "LICENSE"))) }},
		"a zip that is too large": {want: rootPath + "/consume/kafka: the zip has ",
			prepare: func(t *testing.T, repo git) {
				noise := make([]byte, maxZip)
				_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
				write(t, repo, "consume/kafka/picture.png", string(noise))
			}},
		"a module of tests": {want: rootPath + "/consume/kafka requires " + rootPath + "/consume/kafkatest, which is not released",
			prepare: func(t *testing.T, repo git) {
				replace(t, repo, "consume/kafka/go.mod", "\nreplace", "\nrequire "+rootPath+"/consume/kafkatest v0.0.0\n\nreplace "+rootPath+
					"/consume/kafkatest => ../kafkatest\n\nreplace")
			}},
		"a library that is replaced": {want: rootPath + "/consume/kafka replaces example.com/library, which users' builds ignore",
			prepare: func(t *testing.T, repo git) {
				replace(t, repo, "consume/kafka/go.mod", "\nreplace", "\nreplace example.com/library => ../../library\n\nreplace")
			}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			repo := fixture(t)
			c.prepare(t, repo)
			commit(t, repo)
			_, err := rehearse(t.Context(), repo, filepath.Join(t.TempDir(), "rehearsal"), t.Output())
			require.ErrorContains(t, err, c.want)
		})
	}
}

// TestRequirementThatOnlyAReplaceSatisfies: a commit whose versions nobody has set cannot be packed.
func TestRequirementThatOnlyAReplaceSatisfies(t *testing.T) {
	t.Parallel()
	repo := fixture(t)
	m := module{dir: "consume/kafka", path: rootPath + "/consume/kafka", public: true}
	_, err := pack(t.Context(), repo, m, "v0.1.0", "HEAD", t.TempDir())
	require.EqualError(t, err, rootPath+"/consume/kafka requires "+rootPath+
		" v0.0.0, which only a replace satisfies: it must require v0.1.0")
}

// TestRehearseKeepsOtherFolders: a folder that holds something else is not emptied.
func TestRehearseKeepsOtherFolders(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "thesis.tex"), nil, 0o644))
	_, err := rehearse(t.Context(), fixture(t), dir, t.Output())
	require.EqualError(t, err, dir+" is not the folder of a rehearsal: it has thesis.tex")
	require.FileExists(t, filepath.Join(dir, "thesis.tex"))
}
