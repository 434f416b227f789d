package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
)

var heading = regexp.MustCompile(`(?m)^## \[([^\]]+)\](.*)\n`)

const unreleased = "Unreleased"

// section returns the name of the first section of a changelog, what stands behind it in its heading, and its text.
func section(changelog string) (name, rest, text string, err error) {
	all := heading.FindAllStringSubmatchIndex(changelog, 2)
	if all == nil {
		return "", "", "", errors.New(
			"CHANGELOG.md has no section: write ## [Unreleased] and below it what users will notice")
	}
	end := len(changelog)
	if len(all) > 1 {
		end = all[1][0]
	}
	m := all[0]
	return changelog[m[2]:m[3]], changelog[m[4]:m[5]], changelog[m[1]:end], nil
}

// date returns a changelog in which the first section is that of a version, with its date. The section must be named
// Unreleased, or have the version's name without a date, and must list something.
func date(changelog, version string, now time.Time) (string, error) {
	name, rest, text, err := section(changelog)
	if err != nil {
		return "", err
	}
	number := strings.TrimPrefix(version, "v")
	dated := regexp.MustCompile(`\d{4}-\d\d-\d\d`).MatchString(rest)
	if (name != unreleased && name != number) || dated {
		return "", fmt.Errorf("CHANGELOG.md has no entry for it: its first section is [%s]%s; "+
			"write ## [Unreleased] above it, and below that what users will notice", name, rest)
	}
	if !regexp.MustCompile(`(?m)^- `).MatchString(text) {
		return "", fmt.Errorf("CHANGELOG.md has no entry for it: write into [%s] what users will notice, as a list", name)
	}
	old := fmt.Sprintf("## [%s]%s\n", name, rest)
	return strings.Replace(changelog, old, fmt.Sprintf("## [%s] - %s\n", number, now.UTC().Format(time.DateOnly)), 1), nil
}
