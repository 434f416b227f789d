package main

import (
	"bufio"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// readExplained reads the reasons of mutants that may live. A line that is not indented is the id of a mutant, and the
// indented lines below it are the reason of it and of the ids directly above it. Lines that start with # are comments. A
// line that starts with ~ has a regular expression, for ids that it matches as a whole.
func readExplained(path string) (map[string]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	reasons := map[string]string{}
	var ids []string
	inReason := false
	lines := bufio.NewScanner(file)
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		switch {
		case strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "    "):
			if len(ids) == 0 {
				return nil, fmt.Errorf("%s:%d: a reason without the id of a mutant above it", path, n)
			}
			inReason = true
			for _, id := range ids {
				reasons[id] = strings.TrimSpace(reasons[id] + " " + strings.TrimSpace(line))
			}
		default:
			if inReason {
				ids, inReason = nil, false
			}
			if _, twice := reasons[line]; twice {
				return nil, fmt.Errorf("%s:%d: the mutant is explained twice", path, n)
			}
			ids, reasons[line] = append(ids, line), ""
		}
	}
	for id, reason := range reasons {
		if !strings.HasSuffix(reason, ".") {
			return nil, fmt.Errorf("%s: %s: the reason must be a sentence", path, id)
		}
	}
	return reasons, lines.Err()
}

// reasons returns the reasons by the ids of mutants, and what stands for no mutant.
func reasons(lines map[string]string, all []mutant) (byID map[string]string, unknown []string, err error) {
	byID = map[string]string{}
	for line, reason := range lines {
		text, isPattern := strings.CutPrefix(line, "~ ")
		if !isPattern {
			text = regexp.QuoteMeta(line)
		}
		pattern, err := regexp.Compile("^(?:" + text + ")$")
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", line, err)
		}
		found := false
		for _, m := range all {
			if !pattern.MatchString(m.id) {
				continue
			}
			found = true
			if byID[m.id] != "" && byID[m.id] != reason {
				return nil, nil, fmt.Errorf("two reasons for one mutant: %s", m.id)
			}
			byID[m.id] = reason
		}
		if !found {
			unknown = append(unknown, line)
		}
	}
	slices.Sort(unknown)
	return byID, unknown, nil
}
