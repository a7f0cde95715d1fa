# SPDX-License-Identifier: MIT
"""Data that gradscaler 0.9.0 saved, which no later version reads.

The scaler is support.used_scaler(); the report has an Inf; the predictive scaler made 30,000 steps. A dict is JSON.
"""

import base64
import zlib

_SAVED = {
    "state": "eNpjYAABA0cwxbDBjoGhwROITbkZkAEheVzggz2MZoKKwGhmHDpg4oxoNHkAZv/gBQBubAlq",
    "bytes": (
        "eNpzD3YODnEMcWViYGCoARI3gHQDI5DgZAADEJ+JAQYMHKEMBwj1wJ4ZKsDIgA18sEfmMeNUN1AA5p8NdkBfewKxKTdJ8rgAzN8f"
        "7GFhx4QUBtgAejhSFk6o4T4YQdH9qiAAsYkTqA=="
    ),
    "report": "eNpjYGiwZ2SAABDNzYANFNgyoYkwEuATAqSqpxUAAGFfAX8=",
    "flag": "eNpjYGiwZ2SgP2BhGBwAAMFfAMU=",
    "number": "eNpjYEAAJgZ0wOEAYzEyUBcw4bCH3gAAZjAAlg==",
    "dict": (
        "eNp1lN1u2zAMhV+l8PVQxGm7DXsZgbVpWYh+XIlOmg1991KS5USOdxd/pMgj8ij/msF5A9T8eWqkhz50oNE3P56aM/qgnOXAkb8m"
        "jwFTlkEJ5DnANGUzbA+vv99+/Xw+MLP4SWIvIJ3rRSCcwlIz/RZB2Q5FN4KVuAQc9x60u5Rg6f3CsQGUxl68Q3dywxBLxdrkCLRY"
        "zy25mUrvLjRG1q7s7niE2smjMAjxtockNpHAtXZwJCJ8zOCxDvxF78QFlRyj2nZTaC8quUhft8joDF4B332DOzdbWu6cibICBN+w"
        "GkQOhZOaQpVsZk1q0oo3XCugkWc8Ot0/yNDznQa06IGyK9q2LPsR4xktldbKqv8YIi1GDNCRi4KOiS6rueHD89stWVlCz6qWDS/U"
        "z7n4jbAuD6vbYl0Dn6uKfB3Ds1t1JdKh0srKUi8i9pPz96CYTBCGsorxyp14gqo4b00q1o3SYJr0VfSo4fpQy/Grq/Yd5e57/WNW"
        "/lQ+2CY0GiTVLW+HwEskAXy+NmePXe67seUON1wjzkZJA2ENrWIDmEmjiKkbu1j+L9mgZIwN2xTOsNZRzM3W2XkdF/Bmnmpr87w2"
        "b2FpltRWaNAgU/uvb7yflMw="
    ),
    "pickled scaler": (
        "eNptVMFy0zAQTYGGNmmbNtB/gEuH4QcKpxw6w4Uzo9naG1tTWXIlOWmYYYbedUMMv8cn8AmsZMVO4/oS++3u26fdp/x89fvP4Sg+"
        "bl5oyE0GAvUVa3+9G39tX37594/+h3/nxrUSPNv4L27MjAWL9HbEMiUtPtj4bkuNRORvDtwFBapbLjFnhBklDWUcSmXR+G/evWY1"
        "lxSMZSU3VulAfNjyxm5LpSuw3k16cVS3Qm24kv7mBenRaJAyjioswGpCiSAk+sXnD+loE0ni2AAtlMrpEFibwDSPb8xwmSHLSpAF"
        "BvhSUbelUOttqO1389LNlsAFHe0Wsju1XBLJyM2ssiBYVxPyTlus0GptyziXsxbpCw/csVDFR1YhSL8YpcedRdAQ0X7kvEtn5r4B"
        "jYPYd9SKrZEXpfWL638pdtkzPp8wKYgtHwhp0RVoDjSDnci0jWSqkTYMIGVyyYDRgQN0kc4fA+aO13FS56lRIyyvBae99iJmbSw4"
        "yZRK5MN+KxDNroxJgRI12OiKqZvFhT/FxrhCaWPvCZd86IfTdkNsCRk50S8+dadPi+oi1387oW0JJ/tr0hTWPU2YboidNjtP36RI"
        "w9ZuI3dcwcNWQneM44oGl8BuGicZcsFlkRhJPllL6e7zdOs2RvcqLmFSbqgPDY9HA551Ccm7B24KdS02LEcBm1Ax7zkU3bG9Jb8J"
        "Wp9x+/i+4fquHSlZw5YVWp6FWzO1oAu0DKhyd03Rfjlm1LVHZ70p90Pz1udEFgbDiwrMTvRtp9pAVQtkIfuJK6JZJP2JDC0UnbED"
        "nySD7jdJ6QPRW6OTk/ZuS2Jag66aOk43eZ2muHsxth2j9gCkVksBRRhq09xe/Qd5EuLp"
    ),
    "pickled state": (
        "eNprYJl6nJEBDHrY45NLKgtSi6f0cMaX5hVkJmfnpE6ZPKVHOL0oMaU4OTEntUgvvrikqDS5BKiGNbgksQQkXzvFqQFqBAODgSOE"
        "3mDHwNDgCcSm3AzIgJA8LvDBHkYzQUVgNDMOHTBxRjSaPACzf/CCKW1AGDRFDwASjChg"
    ),
    "pickled policy": (
        "eNprYJlqyMgABj3s8ckllQWpxVN6OONL8woyk7NzUqdMntIjlF6UmFKcnJiTWqQXX5Cfk5lcOaWHLQDCmDylFsgpKEotTi2Z0sOR"
        "m5qeWFKUnzel2PnGDaChTAwwYOAIZThAqAf2zFABRgZs4IM9Mo8Zpzr6gyltQBg0RQ8A13wrMg=="
    ),
    "pickled report": (
        "eNprYJlawcgABj1C6UWJKcXJiTmpRXrxRakF+UUlU3o4gazikvyi1JQpk6c4MYDVNthDtYC53AzYQIEtE5oIIwE+IUCqelqBKbVT"
        "NHpY8xJzU4un9HAklWbmlGTmAZmsRYl56anAUPJm8Gb0ZmyfEgQUAwfnFHdHA2gYs8QnJaYATQCpKS5tA6rRAwCf0y4A"
    ),
    "pickled roundpipe": (
        "eNptVEFy1DAQTAK7yzokG0LyB7jkwAfCbQ8pOMADVLPy2FZFlhxZ3s1SRRUcqOLgW8R3eANP4Ak8gbHktZ11fJJ7RtM9M21/e/7r"
        "9+TAP/VFaiAuOUg0V0ZXKi5Ega6OlgR/9rB7cG+/u6/uTT1DBSuJsftZT2NcC06JE6sNz1wHPLj6GS8q98N9IjAU9penhZaCb93H"
        "espKCxbp9IJxrSzeW3+2mUHS4m4O6xkrhFLE1OCZKImkuTkJF325RJscLCntG3D1bI2mFFq5myMiNFgiZcwHfU18plu+/9f2Hymi"
        "ZyM01TommViQnIP63J9YKRRHxjNQKTbwpSa6ROrNLhQIKbJIQNCg2Ar4rU4SX2RhtQXJujsNdhKw1OiNzTxyGpDhxbnU6TuWIyi3"
        "PGif+tSDJRXaj5x16ay8q8DgKPYFjWYbFGlm3fJ61/NlX/HphCilavFISEDXYATQDAaR4xDhNH0/lDZTKAaMGm6gV23/PlDeijDu"
        "s5aoklYUUtBiexGLEGu8UmZaxmO+NchqKCNKUaEB621xWC/8wh9jU1yjsp47EkqM/XASNsQS4GRFCnTdt4vqItd/O6HhiiCDG9Lk"
        "PvyZkcQAmorKE/F5+06SDPR+m+dwv9PQ9THPaXL74EuOQgqVthWP6oi8pU37SsJ3dmMWS7+FKNsSD01PBL91CZ15j6Eo5JbFKGHr"
        "RfY1NH1le1t+3Wh9wu7Tu0qY2zBT8obNcrSCN/WOLZgULQO6OdyT91+MnFh7dNG7cj90HoxOxZrBiDSHchC96FSXkBcSWZP9yBbe"
        "LYp+I2MPeWsMx9w6dJ+kTR+J3jmdrLT3ubSVNmDyqvD/ltbsNMXhl7Fj9Nr9VgKQSEiboVZVtbr6DyRz9N8="
    ),
    "roundpipe dict": (
        "eNrlUcsOgjAQ/BXSsyEL21LxZ0gprRqJJKXBg/HfLVTlEUMkxotM0nR3dmb72CuppSgV2QUJY5iEsAnI3lQXe8i0kLYyrhJ3bC7k"
        "qdK6pyFkvfh4tso0omzlAK0+e1SscUbVGRxbi0YVLiaUM6TIkFEaucWgtTlw6aNi63O3RT6CFAZ41l/VATTQCTPOFaAu3FEj8k2f"
        "WcQf6pb2XQGm89GAys+acr8jn/u3b/3L74t6Lv//ea3rvb+AhFxjmipyuwMkTxoe"
    ),
    "predictive state": (
        "eNpjYACBCw5gikHAnoGhwQ2ILQxLGZAAbvkjH+ItmWN+2q/RCuYUB9KL9AT47kiwQNX/NAORTF8tbQ2g6g1QzMUNGBmoAT7YMwxyAAB/cBUD"
    ),
    "predictive bytes": (
        "eNpzD3YODnEMcWViYGCoARI3gHQDI5DgZAADEJ+JgVRwwQFCf7AHGcVIsv4PDuvcH1aJrHtvr90udvPc9/f2O+RaXwfu4ICZ68BA"
        "FQBzp4A90NduQGxhWEqc/JEP8ZbMMT/t12gFc4oD6UV6Anx3JFig6n+agUimr5a2BlD1BqXEuYiRKv76YM8wyIFyV/YOAF8vLPk="
    ),
    "predictive dict": (
        "eNptVGGToyAM/Ss7/XzrAFKr+2cYTqMyRXABt9u7uf9+QYtVt874gZeQvCQv/D211g0ynD7eTp2Tja+lBnf69Xb6AueVNWhgeBod"
        "eJi97AjGwyfDX2jbDfI7es/30EyLvOQZQcTAdxA/4c7aRvgAo0c4J/jF2/EsvDI1iLqXpoON0SKTVttbckhMoq2VSkMjfsv6atvW"
        "P9Bgg9RivbdDO2dvoY8YXbHDdayKiQFkrJ1m55JXBSeUsYIUlNPk4DH03qtkFSku/EIZL7ZhhP+cpIslsexMGcVWXCi/lPka6w84"
        "K26guj4WdskIKXjFckYLxkl5hnfOd2n3/lXGGC0JKTnJKec5hXca/TvM2iSKZOn+DH1JpyS28gDXdjKpsQuijJACG7bv4GzyVzX6"
        "nfMw6aBGrVA+sSNPQ+hxZL3VzQ8aetpwAANOhkVycfY0ieilBb7AhERAGfXU2iPcPGfRyjpYt6KPSR/hh7MyARyySmUtqJuWsE8E"
        "STm5ijgacAteaH3A/q3ojNSgtDJdihkLQYlatwWSbkUAn8bR3zEbdlGlhKvTdhvkOOq7aEDL+9EtWFzr3cwj5dfr8zkpd00HlEro"
        "BwiqfrwEQboOgpBx8T/eivM5L7J1axqol9xZVe0UuzWslgFDxRYpfEXm5yAj1Za0l8OoIb4ybJdqkY/Bh+ugqFklB2yNvgWfdLZi"
        "RxG92JabdMM07qWOvTvsxiPZzHgHtVp2c/p//wHq461C"
    ),
}
SAVED = {name: zlib.decompress(base64.b64decode(text)) for name, text in _SAVED.items()}
