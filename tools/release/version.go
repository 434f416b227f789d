package main

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/mod/semver"
)

// checkVersion returns an error if a version cannot be released after the tags that exist. The latest one, or "" if
// there is none, is returned too.
func checkVersion(ctx context.Context, repo git, modules []module, version string) (latest string, err error) {
	switch {
	case version == "":
		return "", fmt.Errorf("no version is given: make release VERSION=v0.1.0")
	case semver.Canonical(version) != version || semver.Prerelease(version) != "":
		return "", fmt.Errorf("it is not a version such as v0.1.0")
	case semver.Compare(version, "v2.0.0") >= 0:
		return "", fmt.Errorf("from v2 on, each module path must end in /%s: change the paths first", semver.Major(version))
	}
	tags, err := repo.lines(ctx, "tag", "--list")
	if err != nil {
		return "", err
	}
	for _, m := range modules {
		if m.public && slices.Contains(tags, m.tag(version)) {
			return "", fmt.Errorf("the tag %s exists: choose a higher version", m.tag(version))
		}
	}
	latest = latestOf(tags)
	if latest != "" && semver.Compare(version, latest) < 0 {
		return "", fmt.Errorf("it is not higher than %s, the latest release", latest)
	}
	return latest, nil
}

// latestOf returns the highest version among the tags of the root, or "".
func latestOf(tags []string) (latest string) {
	for _, tag := range tags {
		if semver.Canonical(tag) == tag && semver.Compare(tag, latest) > 0 {
			latest = tag
		}
	}
	return latest
}

// breaks tells whether semantic versioning allows a step between two versions to break code: a higher major version, or
// before v1 a higher minor version.
func breaks(from, to string) bool {
	if semver.Major(from) == "v0" {
		return semver.MajorMinor(from) != semver.MajorMinor(to)
	}
	return semver.Major(from) != semver.Major(to)
}

// extends tells whether a step between two versions may add to the API: from v1 on, only a higher minor version may.
func extends(from, to string) bool {
	return semver.Major(from) == "v0" || semver.MajorMinor(from) != semver.MajorMinor(to)
}
