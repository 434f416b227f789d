package emit

import (
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/dave/jennifer/jen"

	"github.com/outboxgen/outboxgen/generator/model"
)

// addPatterns declares the compiled patterns of fields.
func (e *emitter) addPatterns(g *jen.Group, owner string, fields []*model.Field) {
	for _, f := range fields {
		if f.Pattern == "" {
			continue
		}
		of := owner
		if f.GoName != "" {
			of += "." + f.GoName
		}
		addComment(g, e.patterns[f]+" is the pattern of "+of+".")
		g.Var().Id(e.patterns[f]).Op("=").Qual(regexpPath, "MustCompile").Call(rawString(f.Pattern))
		g.Line()
	}
}

// rawString writes a pattern in backquotes where Go allows it, unless it has characters that nobody sees, which may reorder
// what a reviewer reads.
func rawString(text string) jen.Code {
	hidden := func(r rune) bool { return r != '\t' && !unicode.IsPrint(r) }
	if strconv.CanBackquote(text) && !strings.ContainsFunc(text, hidden) {
		return jen.Id("`" + text + "`")
	}
	return jen.Lit(text)
}

// addValidate declares the Validate method of a struct: a check per rule of its fields.
func (e *emitter) addValidate(g *jen.Group, self, name, subject string, fields []*model.Field) {
	var checks []check
	for _, f := range fields {
		checks = append(checks, e.fieldChecks(self, f)...)
	}
	if len(checks) == 0 {
		addComment(g, "Validate returns nil: no field of "+name+" has a rule.")
		g.Func().Params(jen.Id(name)).Id("Validate").Params().Error().Block(jen.Return(jen.Nil()))
		g.Line()
		return
	}
	addComment(g, "Validate returns nil, or a *payload.ValidationError that lists every invalid field, without values.")
	addChecks(g, self, name, subject, checks)
}

// addChecks declares the Validate method that does checks.
func addChecks(g *jen.Group, self, name, subject string, checks []check) {
	g.Func().Params(jen.Id(self).Id(name)).Id("Validate").Params().Error().BlockFunc(func(g *jen.Group) {
		g.Var().Id(checksVar).Qual(payloadPath, "Checks")
		for _, c := range checks {
			g.Add(c.statement())
		}
		g.Return(jen.Id(checksVar).Dot("Err").Call(jen.Lit(subject)))
	})
	g.Line()
}

// checksVar names the variable that collects what the checks of a payload find.
const checksVar = "c"

// check is a call of a function of package payload that returns FieldErrors.
type check struct {
	name string
	args []jen.Code
}

func (c check) expression() *jen.Statement { return jen.Qual(payloadPath, c.name).Call(c.args...) }

// statement adds what the check finds to checksVar. The checks that are not generic are its methods.
func (c check) statement() *jen.Statement {
	switch c.name {
	case "Text", "MinLen", "MaxLen", "Match", "Finite", "RequiredUUID", "RequiredTime", "Instant", "JSON":
		return jen.Id(checksVar).Dot(c.name).Call(c.args...)
	}
	return jen.Id(checksVar).Dot("Add").Call(c.expression())
}

// callLines renders the arguments of a call with a line per argument, after those in head, which stay on its line.
func callLines(head ...string) jen.Options {
	open := "("
	if len(head) > 0 {
		open += strings.Join(head, ", ") + ","
	}
	return jen.Options{Open: open, Close: ")", Separator: ",", Multi: true}
}

// fieldChecks returns the checks of one field. The checks of an optional value behind a pointer are wrapped in one
// Optional.
func (e *emitter) fieldChecks(self string, f *model.Field) []check {
	if !f.Optional || !isPointer(f) {
		return e.valueChecks(f, jen.Lit(f.Name), jen.Id(self).Dot(f.GoName))
	}
	member := []jen.Code{jen.Lit(f.Name), jen.Id(self).Dot(f.GoName)}
	if !hasBounds(f) {
		of := e.elementCheck(f.Type, true)
		if of == nil {
			return nil
		}
		return []check{{"Optional", append(member, of)}}
	}
	var inner []jen.Code
	for _, c := range e.valueChecks(f, jen.Id("field"), jen.Id("value")) {
		inner = append(inner, c.expression())
	}
	result := inner[0]
	if len(inner) > 1 {
		result = jen.Qual(payloadPath, "All").Custom(callLines(), inner...)
	}
	params := []jen.Code{jen.Id("field").String(), jen.Id("value").Add(e.goType(f.Type))}
	if f.Type.Kind == model.String {
		params = []jen.Code{jen.List(jen.Id("field"), jen.Id("value")).String()}
	}
	of := jen.Func().Params(params...).Qual(payloadPath, "FieldErrors").Block(
		jen.Return(result),
	)
	return []check{{"Optional", append(member, of)}}
}

func hasBounds(f *model.Field) bool {
	return f.Min != nil || f.Max != nil || f.MinLen != nil || f.MaxLen != nil || f.Pattern != ""
}

// valueChecks returns the checks of a value that is present: those that its type needs, then its bounds.
func (e *emitter) valueChecks(f *model.Field, field, value *jen.Statement) []check {
	var checks []check
	call := func(name string, args ...jen.Code) check {
		return check{name, append([]jen.Code{field.Clone()}, args...)}
	}
	add := func(name string, args ...jen.Code) { checks = append(checks, call(name, args...)) }

	if !f.Optional {
		switch f.Type.Base() {
		case model.UUID:
			add("RequiredUUID", value.Clone())
		case model.Timestamp:
			add("RequiredTime", value.Clone())
		}
	}
	if c, ok := e.typeCheck(f.Type, field, value); ok {
		if f.Optional && f.Type.Kind == model.JSON {
			c = ifAny(value, c)
		}
		checks = append(checks, c)
	}
	unit, isLength := lengthUnits[f.Type.Kind]
	if f.MinLen != nil {
		switch {
		case !isLength:
			add("MinLen", value.Clone(), jen.Lit(*f.MinLen))
		case f.Optional:
			checks = append(checks, ifAny(value, call("Min"+unit, jen.Len(value.Clone()), jen.Lit(*f.MinLen))))
		default:
			add("Min"+unit, jen.Len(value.Clone()), jen.Lit(*f.MinLen))
		}
	}
	if f.MaxLen != nil {
		if isLength {
			add("Max"+unit, jen.Len(value.Clone()), jen.Lit(*f.MaxLen))
		} else {
			add("MaxLen", value.Clone(), jen.Lit(*f.MaxLen))
		}
	}
	if f.Pattern != "" {
		add("Match", value.Clone(), jen.Id(e.patterns[f]))
	}
	if f.Min != nil {
		add("Min", value.Clone(), bound(f.Type.Kind, f.Min))
	}
	if f.Max != nil {
		add("Max", value.Clone(), bound(f.Type.Kind, f.Max))
	}
	return checks
}

// lengthUnits maps the kinds whose length is len(v) to the suffix of their checks; a string counts runes.
var lengthUnits = map[model.Kind]string{
	model.Bytes: "Bytes", model.JSON: "Bytes", model.List: "Items", model.Map: "Items",
}

func ifAny(value *jen.Statement, c check) check {
	return check{"IfAny", []jen.Code{jen.Len(value.Clone()), c.expression()}}
}

// typeCheck returns the check that the type of a value needs, false when every value is valid.
func (e *emitter) typeCheck(ref model.TypeRef, field, value *jen.Statement) (check, bool) {
	args := []jen.Code{field.Clone(), value.Clone()}
	switch ref.Kind {
	case model.List:
		of := e.elementCheck(*ref.Elem, true)
		return check{"Each", append(args, of)}, of != nil
	case model.Map:
		return check{"EachValue", append(args, e.valueOrAny(*ref.Elem))}, true
	}
	name := checkName(ref)
	return check{name, args}, name != ""
}

// elementCheck returns the check of a type as a function, nil when every value is valid. The type argument of the
// outermost one is inferred; inside EachIn it must be written.
func (e *emitter) elementCheck(ref model.TypeRef, inferred bool) *jen.Statement {
	switch ref.Kind {
	case model.List:
		check := e.elementCheck(*ref.Elem, false)
		if check == nil {
			return nil
		}
		return jen.Qual(payloadPath, "EachIn").Call(check)
	case model.Map:
		check := e.elementCheck(*ref.Elem, false)
		if check == nil {
			check = jen.Qual(payloadPath, "AnyValue").Types(e.goType(*ref.Elem))
		}
		return jen.Qual(payloadPath, "EachValueIn").Call(check)
	}
	name := checkName(ref)
	if name == "" {
		return nil
	}
	check := jen.Qual(payloadPath, name)
	if name == "Valid" && !inferred {
		check.Types(e.goType(ref))
	}
	return check
}

func (e *emitter) valueOrAny(ref model.TypeRef) *jen.Statement {
	if check := e.elementCheck(ref, true); check != nil {
		return check
	}
	return jen.Qual(payloadPath, "AnyValue")
}

// checkName is the check that values of a scalar or shared type need, "" for none.
func checkName(ref model.TypeRef) string {
	switch ref.Kind {
	case model.String:
		return "Text"
	case model.Float64:
		return "Finite"
	case model.Timestamp:
		return "Instant"
	case model.JSON:
		return "JSON"
	case model.Date:
		return "Valid"
	case model.Named:
		if ref.Type.HasRules() {
			return "Valid"
		}
	}
	return ""
}

// bound writes a bound as an untyped constant, and a duration in its largest unit.
func bound(kind model.Kind, v any) jen.Code {
	switch v := v.(type) {
	case int64:
		if kind == model.Duration {
			return duration(time.Duration(v))
		}
		return jen.Id(strconv.FormatInt(v, 10))
	case float64:
		return jen.Id(strconv.FormatFloat(v, 'g', -1, 64))
	}
	return jen.Lit(v)
}

// duration writes d in the largest unit that divides it: 30 * time.Second.
func duration(d time.Duration) *jen.Statement {
	if d == 0 {
		return jen.Lit(0)
	}
	for _, unit := range []struct {
		name string
		size time.Duration
	}{
		{"Hour", time.Hour}, {"Minute", time.Minute}, {"Second", time.Second},
		{"Millisecond", time.Millisecond}, {"Microsecond", time.Microsecond},
	} {
		if d%unit.size == 0 {
			return times(int64(d/unit.size), unit.name)
		}
	}
	return times(int64(d), "Nanosecond")
}

func times(n int64, unit string) *jen.Statement {
	if n == 1 {
		return jen.Qual(timePath, unit)
	}
	return jen.Id(strconv.FormatInt(n, 10)).Op("*").Qual(timePath, unit)
}
