package model

// The Go names that the YAML sets with go, "" for those that are made from the YAML's own names.

// GoOverride returns the Go name of f if the YAML sets it.
func (f *Field) GoOverride() string { return overrideOf(f.Name, f.GoName) }

// GoOverride returns the Go name of t if the YAML sets it.
func (t *Type) GoOverride() string { return overrideOf(t.Name, t.GoName) }

// ConstantOverride returns what the constant of v, a value of the enum t, is called after the name of t, if the YAML
// sets it.
func (t *Type) ConstantOverride(v EnumValue) string {
	name := v.GoName[len(t.GoName):]
	if enumPattern.MatchString(v.Value) {
		return overrideOf(v.Value, name)
	}
	return name
}

func overrideOf(name, goName string) string {
	if camel(name) == goName {
		return ""
	}
	return goName
}
