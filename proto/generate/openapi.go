package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"
)

type object = map[string]any

// openAPI describes the services of a file in OpenAPI 3.1, as they are called with JSON over HTTP. What the comments begin with
// "Required" is required, and the fields of answers are all there.
func openAPI(file protoreflect.FileDescriptor, name string) error {
	paths, schemas := object{}, object{}
	answers := map[protoreflect.FullName]bool{}
	for i := range file.Services().Len() {
		s := file.Services().Get(i)
		for j := range s.Methods().Len() {
			m := s.Methods().Get(j)
			kind := "application/json"
			about := comment(m)
			if m.IsStreamingServer() {
				kind = "application/connect+json"
				about += " The answer is a stream by the Connect protocol: each message has five bytes before it, a flag and its length. The request is enveloped in the same way. The last message has the flag 2 and holds the error, if there was one: the status is 200 in any case."
			}
			markAnswers(m.Output(), answers)
			paths["/"+string(s.FullName())+"/"+string(m.Name())] = object{"post": object{
				"operationId": string(m.Name()), "summary": firstSentence(about), "description": about, "tags": []string{string(s.Name())},
				"requestBody": object{"required": true, "content": object{kind: object{"schema": ref(m.Input())}}},
				"responses": object{
					"200":     object{"description": "The answer.", "content": object{kind: object{"schema": ref(m.Output())}}},
					"default": object{"description": "An error.", "content": object{"application/json": object{"schema": object{"$ref": "#/components/schemas/ConnectError"}}}},
				},
			}}
		}
	}
	for i := range file.Messages().Len() {
		m := file.Messages().Get(i)
		if m.Name() != "FieldViolation" {
			schemas[string(m.Name())] = schema(m, answers[m.FullName()])
		}
	}
	schemas["ConnectError"] = object{"type": "object", "required": []string{"code"}, "properties": object{
		"code": object{"type": "string", "enum": []string{"canceled", "deadline_exceeded", "internal", "invalid_argument", "not_found", "permission_denied",
			"resource_exhausted", "unauthenticated", "unavailable", "unimplemented", "unknown"}},
		"message": object{"type": "string"},
		"details": object{"type": "array", "description": "With invalid_argument, a cortex.v1.FieldViolation: the field, and what is wrong with it.", "items": object{"type": "object"}},
	}}
	doc := object{
		"openapi":    "3.1.0",
		"info":       object{"title": "CORTEX decision service", "version": "v1", "description": comment(file.SourceLocations().ByPath(protoreflect.SourcePath{12}))},
		"paths":      paths,
		"components": object{"schemas": schemas, "securitySchemes": object{"token": object{"type": "http", "scheme": "bearer"}}},
		"security":   []object{{}, {"token": []string{}}},
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(doc); err != nil {
		return err
	}
	return os.WriteFile(name, b.Bytes(), 0o644)
}

func markAnswers(m protoreflect.MessageDescriptor, answers map[protoreflect.FullName]bool) {
	answers[m.FullName()] = true
	for i := range m.Fields().Len() {
		if inner := m.Fields().Get(i).Message(); inner != nil {
			markAnswers(inner, answers)
		}
	}
}

func schema(m protoreflect.MessageDescriptor, answer bool) object {
	properties := object{}
	required := []string{}
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		about := comment(f)
		var p object
		switch {
		case f.Message() != nil:
			p = ref(f.Message())
		case f.Kind() == protoreflect.BoolKind:
			p = object{"type": "boolean"}
		case f.Kind() == protoreflect.StringKind:
			p = object{"type": "string"}
		case f.Kind() == protoreflect.Int32Kind:
			p = object{"type": "integer", "format": "int32"}
		case f.Kind() == protoreflect.DoubleKind:
			p = object{"type": "number", "format": "double"}
		default:
			panic("a field whose numbers are no JSON numbers: " + string(f.FullName()))
		}
		if f.IsList() {
			p = object{"type": "array", "items": p}
		}
		if about != "" {
			p["description"] = about
		}
		properties[string(f.Name())] = p
		if answer || strings.HasPrefix(about, "Required") {
			required = append(required, string(f.Name()))
		}
	}
	s := object{"type": "object", "properties": properties}
	if about := comment(m); about != "" {
		s["description"] = about
	}
	if len(required) > 0 {
		s["required"] = required
	}
	if !answer {
		s["additionalProperties"] = false
	}
	return s
}

func ref(m protoreflect.MessageDescriptor) object {
	return object{"$ref": "#/components/schemas/" + string(m.Name())}
}

// comment is what stands above or behind a declaration, in one line.
func comment(d any) string {
	var at protoreflect.SourceLocation
	switch d := d.(type) {
	case protoreflect.SourceLocation:
		at = d
	case protoreflect.Descriptor:
		at = d.ParentFile().SourceLocations().ByDescriptor(d)
	}
	text := at.LeadingComments
	if text == "" {
		text = at.TrailingComments
	}
	return strings.Join(strings.Fields(text), " ")
}

func firstSentence(s string) string {
	first, _, _ := strings.Cut(s, ". ")
	return strings.TrimSuffix(first, ".")
}
