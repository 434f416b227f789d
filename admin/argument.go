package admin

import (
	"fmt"
	"strings"
)

// ArgumentError is a mistake in an argument. Nothing was read and nothing was changed.
type ArgumentError struct {
	// Argument is the type of the argument: Filter, AuditFilter, Page, Act, Scope, LimitScope,
	// LimitValue or DoctorConfig.
	Argument string
	// Problem says what is wrong, and what to do.
	Problem string
}

// Error names the argument, unless the problem does.
func (e *ArgumentError) Error() string {
	switch e.Argument {
	case "Scope", "LimitScope", "LimitValue", "DoctorConfig":
		return e.Problem
	case "AuditFilter":
		return "filter: " + e.Problem
	}
	return strings.ToLower(e.Argument) + ": " + e.Problem
}

func argumentError(argument, format string, args ...any) error {
	return &ArgumentError{argument, fmt.Sprintf(format, args...)}
}
