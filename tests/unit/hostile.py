# SPDX-License-Identifier: Apache-2.0
"""Names that somebody gave a job, an account or a cluster so that whoever prints them does something else."""

HOSTILE = (
    # HTML and templates
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</td></tr></table><!--",
    "&lt;b&gt;&#60;",
    "{{ 7 * 7 }}{% raw %}",
    "${7*7}",
    # what a terminal acts on
    "\x1b[31mred\x1b[0m",
    "\x1b]0;title\x07",
    "\x1b]8;;http://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "\u2028\u0085\x9b31m",
    "\0nul\0",
    "\b\b\b\x7f",
    # what lines, tables and the direction of reading are made of
    "abc\u202egpj.exe",
    "\u200f\u2066x\u2069",
    "new\nline\r\ttab",
    "a|b||c",
    "\\|",
    "\u200bzero\ufeff",
    "e" + "\u0301" * 300,
    "日本" * 200,
    # Markdown
    "**bold** _it_ `code` ~~gone~~",
    "[x](javascript:alert(1))",
    "![x](http://evil.example/?me)",
    "http://evil.example www.evil.example <http://evil.example>",
    "# title",
    "---",
    # spreadsheets, SQL, bytes that are no UTF-8
    "=cmd|' /C calc'!A0",
    "=1+1",
    "+1",
    "-1",
    "@x",
    "\t=1",
    "\r=1",
    "'; DROP TABLE report; --",
    "\udcff",
    "",
    " ",
)
