package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// release commits and tags one version of all modules. Until the last step it changes nothing in the repository: the
// commit is made in a working tree of its own, and all references move at once.
type release struct {
	repo    git
	version string
	checks  []string // targets of the Makefile
	now     time.Time
	log     io.Writer

	modules []module
	branch  string
}

func (r *release) run(ctx context.Context) (err error) {
	if r.modules, err = modulesOf(ctx, r.repo); err != nil {
		return err
	}
	latest, err := checkVersion(ctx, r.repo, r.modules, r.version)
	if err != nil {
		return err
	}
	status, err := r.repo.lines(ctx, "status", "--porcelain")
	if err != nil {
		return err
	}
	if len(status) > 0 {
		return fmt.Errorf("some files are changed or new, commit or remove them: %s", few(status))
	}
	if r.branch, err = r.repo.line(ctx, "symbolic-ref", "--quiet", "HEAD"); err != nil {
		return errors.New("no branch is checked out: git switch to the branch of the release")
	}
	changelog, err := os.ReadFile(r.file("CHANGELOG.md"))
	if err != nil {
		return err
	}
	if _, err := date(string(changelog), r.version, r.now); err != nil {
		return err
	}
	if latest != "" {
		fmt.Fprintf(r.log, "comparing the API with %s\n", latest)
		if err := r.compare(ctx, latest); err != nil {
			return err
		}
	}
	if len(r.checks) > 0 {
		fmt.Fprintf(r.log, "make %s\n", strings.Join(r.checks, " "))
		if err := command(ctx, r.repo.dir, r.log, "make", r.checks...); err != nil {
			return fmt.Errorf("%w: nothing was committed or tagged", err)
		}
	}
	return r.worktree(ctx, "HEAD", func(tree git) error {
		commit, err := r.commit(ctx, tree)
		if err != nil {
			return err
		}
		return r.publish(ctx, commit)
	})
}

func (r *release) file(name string) string { return filepath.Join(r.repo.dir, name) }

// worktree calls do with a temporary working tree of a commit.
func (r *release) worktree(ctx context.Context, commit string, do func(tree git) error) (err error) {
	dir, err := os.MkdirTemp("", "release-*")
	if err != nil {
		return err
	}
	defer func() {
		_, removed := r.repo.run(context.WithoutCancel(ctx), "", "worktree", "remove", "--force", dir)
		err = errors.Join(err, removed)
	}()
	if _, err := r.repo.run(ctx, "", "worktree", "add", "--quiet", "--detach", dir, commit); err != nil {
		return err
	}
	return do(git{dir: dir})
}

// compare compares the API of all public modules with the latest release.
func (r *release) compare(ctx context.Context, latest string) error {
	return r.worktree(ctx, latest, func(old git) error {
		before, err := modulesOf(ctx, old)
		if err != nil {
			return err
		}
		var problems []string
		for _, m := range before {
			if !m.public {
				continue
			}
			if _, err := os.Stat(r.file(filepath.FromSlash(m.dir) + "/go.mod")); err != nil {
				if !breaks(latest, r.version) {
					problems = append(problems, fmt.Sprintf("%s is gone, which needs a higher %s version", m.path, bump(latest)))
				}
				continue
			}
			if err := checkAPI(ctx, old.dir, r.repo.dir, m, latest, r.version); err != nil {
				problems = append(problems, err.Error())
			}
		}
		if len(problems) > 0 {
			return errors.New(strings.Join(problems, "\n"))
		}
		return nil
	})
}

// commit writes the version into a working tree and commits it. It returns the commit, which no branch has yet.
func (r *release) commit(ctx context.Context, tree git) (string, error) {
	path := func(name string) string { return filepath.Join(tree.dir, filepath.FromSlash(name)) }
	for _, m := range r.modules {
		if err := requireVersion(path(m.dir+"/go.mod"), r.version); err != nil {
			return "", err
		}
	}
	for _, m := range r.modules { // after all of them have changed, because they read each other's
		list := exec.CommandContext(ctx, "go", "list", "-mod=readonly", "-test", "-deps", "./...")
		list.Dir = path(m.dir)
		if out, err := list.CombinedOutput(); err != nil {
			return "", fmt.Errorf("go list in %s: %w: %s", m.dir, err, out)
		}
	}
	for _, name := range []string{"outbox/version.go", "consume/version.go"} {
		if err := rewrite(path(name), func(text string) (string, error) { return guarded(text, r.version) }); err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
	}
	if err := rewrite(path("CHANGELOG.md"), func(text string) (string, error) {
		return date(text, r.version, r.now)
	}); err != nil {
		return "", err
	}
	if _, err := tree.run(ctx, "", "commit", "--quiet", "--all", "--allow-empty", "--message",
		"Release "+r.version); err != nil {
		return "", err
	}
	return tree.line(ctx, "rev-parse", "HEAD")
}

// guarded returns the text of a version.go with the constant of a version.
func guarded(text, version string) (string, error) {
	name := "IsAtLeastVersion" + strings.ReplaceAll(strings.TrimPrefix(version, "v"), ".", "_")
	if strings.Contains(text, "\t"+name+" = true\n") {
		return text, nil
	}
	before, after, ok := strings.Cut(text, "\n)\n")
	if !ok {
		return "", errors.New("it has no constants in parentheses")
	}
	return before + "\n\t" + name + " = true\n)\n" + after, nil
}

func rewrite(file string, change func(text string) (string, error)) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	changed, err := change(string(text))
	if err != nil {
		return err
	}
	return os.WriteFile(file, []byte(changed), 0o644)
}

// publish moves the branch to the commit and creates all tags, or does nothing. Then it updates the files of the
// checkout.
func (r *release) publish(ctx context.Context, commit string) error {
	head, err := r.repo.line(ctx, "rev-parse", commit+"^") // if the branch has moved since, nothing happens
	if err != nil {
		return err
	}
	tagger, err := r.repo.line(ctx, "var", "GIT_COMMITTER_IDENT")
	if err != nil {
		return err
	}
	references := fmt.Sprintf("start\nupdate %s %s %s\n", r.branch, commit, head)
	for _, tag := range r.tags() {
		text := fmt.Sprintf("object %s\ntype commit\ntag %s\ntagger %s\n\nRelease %s\n", commit, tag, tagger, r.version)
		object, err := r.repo.run(ctx, text, "mktag")
		if err != nil {
			return err
		}
		references += fmt.Sprintf("create refs/tags/%s %s\n", tag, strings.TrimSpace(object))
	}
	if _, err := r.repo.run(ctx, references+"commit\n", "update-ref", "-m", "release "+r.version, "--stdin"); err != nil {
		return err
	}
	if _, err := r.repo.run(ctx, "", "read-tree", "-m", "-u", head, commit); err != nil {
		return fmt.Errorf("%s is committed and tagged, but the files here are those before it (git reset --hard): %w",
			r.version, err)
	}
	return nil
}

// tags returns the tags of the release, with that of the root first.
func (r *release) tags() (tags []string) {
	for _, m := range r.modules {
		if m.public {
			tags = append(tags, m.tag(r.version))
		}
	}
	return tags
}

// pushCommand returns the command that publishes the release.
func (r *release) pushCommand() string {
	branch := strings.TrimPrefix(r.branch, "refs/heads/")
	return "git push --atomic origin " + branch + " " + strings.Join(r.tags(), " ")
}
