"""Tables as text: one row a line, cells between commas, quotes around cells that hold commas or quotes."""


def cells(line: str) -> list[str]:
    """The cells of one line. In a quoted cell two quotes mean one; cells without quotes are stripped."""
    found = []
    cell = ""
    is_quoted = was_quoted = False
    at = 0
    while at < len(line):
        letter = line[at]
        if is_quoted and letter == '"' and line[at + 1 : at + 2] == '"':
            cell += '"'
            at += 1
        elif letter == '"':
            is_quoted = not is_quoted
            was_quoted = True
        elif letter == "," and not is_quoted:
            found.append(cell if was_quoted else cell.strip())
            cell, was_quoted = "", False
        else:
            cell += letter
        at += 1
    found.append(cell if was_quoted else cell.strip())
    return found


def table(text: str) -> list[dict[str, str]]:
    """Rows by the names in the first line; blank lines are left out, missing cells are empty."""
    lines = [line for line in text.splitlines() if line.strip()]
    names = cells(lines[0]) if lines else []
    rows = []
    for line in lines[1:]:
        values = cells(line)
        rows.append({name: values[at] if at < len(values) else "" for at, name in enumerate(names)})
    return rows
